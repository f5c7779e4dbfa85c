#include "lockstep/train/plan_parts.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/world.h"

namespace lockstep::train {
namespace {

World second_node(const std::string& rank, const std::string& local_rank) {
  const std::map<std::string, std::string> variables{
      {"RANK", rank},      {"WORLD_SIZE", "16"},      {"LOCAL_RANK", local_rank}, {"LOCAL_WORLD_SIZE", "8"},
      {"GROUP_RANK", "1"}, {"GROUP_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a.host"},  {"MASTER_PORT", "29500"}};
  return world_from_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(PlanParts, BR057_TheDeviceIsTheLocalRankNotTheRank) {
  config::TrainPlan plan;
  const World first = second_node("8", "0"), last = second_node("15", "7");
  ASSERT_EQ(first.rank, 8);
  EXPECT_EQ(device_index(plan, first.local_rank), 0);
  EXPECT_EQ(device_index(plan, last.local_rank), 7);
  plan.devices = {3, 1};
  EXPECT_EQ(device_index(plan, first.local_rank), 3);
  EXPECT_EQ(device_index(plan, second_node("9", "1").local_rank), 1);
}

}  // namespace
}  // namespace lockstep::train
