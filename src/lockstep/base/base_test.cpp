#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/table.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/base/world.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(Units, ParsesDurations) {
  EXPECT_EQ(parse_duration("500ms", "--grace"), 500ms);
  EXPECT_EQ(parse_duration("10s", "--grace"), 10s);
  EXPECT_EQ(parse_duration("30m", "--grace"), 30min);
  EXPECT_EQ(parse_duration("2h", "--grace"), 2h);
  EXPECT_EQ(parse_duration("7", "--grace"), 7s);
  EXPECT_EQ(parse_duration("1.5h", "--grace"), 90min);
}

TEST(Units, RefusesWhatIsNoDuration) {
  for (const char* word : {"", "s", "-1s", "10x", "1e99h", "nan", "inf", " 5s"}) {
    EXPECT_THROW(parse_duration(word, "--grace"), ConfigError) << word;
  }
}

TEST(Units, Formats) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{139} << 30), "139.0 GiB");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_duration(0.85s), "850 ms");
  EXPECT_EQ(format_duration(245s), "4 min 05 s");
  EXPECT_EQ(utc_timestamp(std::chrono::system_clock::time_point(1700000000123ms)), "2023-11-14T22:13:20.123Z");
}

TEST(Text, FindsTheNearestWord) {
  EXPECT_EQ(nearest("--batchsize", {"--batch-size", "--base", "--epochs"}), "--batch-size");
  EXPECT_EQ(nearest("--zzzz", {"--batch-size", "--epochs"}), "");
}

TEST(Text, ParsesWholeNumbersOnly) {
  long long value = 7;
  EXPECT_TRUE(parse_number("+12", value));
  EXPECT_EQ(value, 12);
  for (const char* word : {"", "12x", "1.5", "99999999999999999999", " 3"})
    EXPECT_FALSE(parse_number(word, value)) << word;
  EXPECT_EQ(value, 12);
}

TEST(Table, AlignsColumns) {
  const Table table{{{"name", Table::Align::kLeft}, {"n", Table::Align::kRight}}, {{"a", "10"}, {"bcdef", "7"}}};
  EXPECT_EQ(table.to_string(), "name    n\n-----  --\na      10\nbcdef   7\n");
}

TEST(File, AtomicWriteReplacesAndLeavesNothing) {
  TemporaryDirectory folder("lockstep-base-test");
  const auto path = folder.path() / "value.json";
  write_file_atomic(path, "old");
  write_file_atomic(path, "new");
  EXPECT_EQ(read_file(path), "new");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(File, WriteErrorNamesPathAndNeed) {
  try {
    write_file_atomic("/proc/lockstep/value.json", "12345");
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("/proc/lockstep/value.json: cannot write 5 B"), std::string::npos);
  }
}

EnvironmentReader fake(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(World, IsSingleWithoutVariables) {
  const World world = world_from_environment(fake({}));
  EXPECT_EQ(world.size, 1);
  EXPECT_EQ(world.source, "single process");
}

TEST(World, ReadsTorchrunsEnvironment) {
  const World world = world_from_environment(fake({{"RANK", "8"},
                                                   {"WORLD_SIZE", "16"},
                                                   {"LOCAL_RANK", "0"},
                                                   {"LOCAL_WORLD_SIZE", "8"},
                                                   {"GROUP_RANK", "1"},
                                                   {"GROUP_WORLD_SIZE", "2"},
                                                   {"MASTER_ADDR", "10.0.0.1"},
                                                   {"MASTER_PORT", "29500"},
                                                   {"TORCHELASTIC_RUN_ID", "x"},
                                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_EQ(world.rank, 8);
  EXPECT_EQ(world.local_rank, 0);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_TRUE(world.agent_serves_store);
  EXPECT_EQ(world.source, "torchrun");
}

TEST(World, RefusesContradictions) {
  const std::map<std::string, std::string> good{{"RANK", "1"},
                                                {"WORLD_SIZE", "2"},
                                                {"LOCAL_RANK", "1"},
                                                {"LOCAL_WORLD_SIZE", "2"},
                                                {"MASTER_ADDR", "127.0.0.1"},
                                                {"MASTER_PORT", "29500"}};
  EXPECT_EQ(world_from_environment(fake(good)).rank, 1);
  for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", "2"},
                                                                      {"RANK", "x"},
                                                                      {"WORLD_SIZE", "0"},
                                                                      {"LOCAL_RANK", "5"},
                                                                      {"MASTER_PORT", "66660"},
                                                                      {"MASTER_ADDR", ""}}) {
    auto bad = good;
    bad[name] = value;
    EXPECT_THROW(world_from_environment(fake(bad)), ConfigError) << name << "=" << value;
  }
}

}  // namespace
}  // namespace lockstep
