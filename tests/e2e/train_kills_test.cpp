// BR-082: a rank of a real training run is killed at a random step. TRAIN_KILLS says how often.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <regex>
#include <set>

#include "e2e/train_command.h"

namespace lockstep::e2e {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST(TrainKills, BR082_RandomKillsNameRankAndStepAndLeaveNothing) {
  std::mt19937 random(20261201);
  for (int repeat = 0; repeat < TRAIN_KILLS; ++repeat) {
    SCOPED_TRACE(repeat);
    TemporaryDirectory folder("lockstep-train-kills"), temporary("lockstep-train-kills");
    const fs::path run_dir = folder.path() / "run";
    const auto shared_before = names_in("/dev/shm");
    Command command(Words{text("TMPDIR=", temporary.path().string()), Command::binary()} +
                        endless_training(3, run_dir) + Words{"--log-every", "1", "--json"},
                    Command::Terminal::kNone, "env");
    ASSERT_TRUE(is_training(run_dir)) << command.err();
    const int victim = static_cast<int>(random() % 3);
    const int pid = command.rank_pid(victim);
    ASSERT_NE(pid, 0);
    ::usleep(static_cast<unsigned>(random() % 300000));
    const auto killed = std::chrono::steady_clock::now();
    ::kill(pid, SIGKILL);
    EXPECT_EQ(command.wait(), 137);
    EXPECT_TRUE(command.living().empty());
    EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(2));

    const std::string err = command.err();
    EXPECT_THAT(err, HasSubstr(text("lockstep: rank ", victim, " (host ")));
    std::smatch found;
    const std::regex line(text("pid ", pid, "\\) failed first: killed by SIGKILL at step ([0-9]+)\n"));
    ASSERT_TRUE(std::regex_search(err, found, line)) << err;
    const std::int64_t step = std::stoll(found[1]);
    // Ranks are never more than a step apart, and the step is reported before it is logged.
    EXPECT_NEAR(static_cast<double>(step), static_cast<double>(last_step(run_dir)), 2);
    const auto failure = nlohmann::json::parse(command.out())["failure"];
    EXPECT_EQ(failure["rank"], victim);
    EXPECT_EQ(failure["step"], step);

    EXPECT_EQ(names_in("/dev/shm"), shared_before);
    EXPECT_TRUE(fs::is_empty(temporary.path()));
    EXPECT_THAT(names_in(run_dir), ElementsAre("events.jsonl", "logs", "plan.json"));
  }
}

}  // namespace
}  // namespace lockstep::e2e
