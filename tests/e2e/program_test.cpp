// A program of one's own (examples/020_ddp.cpp) as people start it, rightly and wrongly.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "e2e/launcher_command.h"
#include "lockstep/base/text.h"

namespace lockstep::e2e {
namespace {

using ::testing::HasSubstr;

std::string program() {
  return text(std::getenv("LOCKSTEP_BUILD_DIR"), "/examples/example_020_ddp");
}

TEST(Program, BR064_RanksWithDifferentSeedsAreRefused) {
  Command command({"run", "--nproc", "2", "--", "/bin/sh", "-c", text("exec ", program(), " --seed $RANK")});
  EXPECT_EQ(command.wait(), 2) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("--seed differs between ranks: rank 0 has 0, rank 1 has 1"));
  EXPECT_TRUE(command.living().empty());
}

TEST(Program, NprocUnderALauncherIsRefused) {
  Command command({"run", "--nproc", "2", "--", program(), "--nproc", "2"});
  EXPECT_EQ(command.wait(), 2) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("that would start 2 more for each"));
}

TEST(Program, BadFlagsAreRefusedBeforeAnythingStarts) {
  for (const auto& words : {std::vector<std::string>{"--nproc", "0"},
                            {"--nproc", "two"},
                            {"--nproc"},
                            {"--strategy", "zero9"},
                            {"--device", "tpu"},
                            {"--seed", "-1"}}) {
    Command command(words, Command::Terminal::kNone, program());
    EXPECT_EQ(command.wait(), 2) << command.err();
    EXPECT_THAT(command.err(), HasSubstr(words.front()));
  }
}

TEST(Program, AKilledRankIsNamedWithItsStep) {
  Command command({"--nproc", "2"}, Command::Terminal::kNone, program());
  int pid = 0;
  ASSERT_TRUE(Command::eventually([&] { return (pid = command.rank_pid(1)) != 0; }));
  ::usleep(300000);  // the whole program takes 1.5 s on an idle machine; the name must be right at any moment
  ::kill(pid, SIGKILL);
  EXPECT_EQ(command.wait(), 137) << command.err();
  EXPECT_THAT(command.err(), HasSubstr(text("pid ", pid, ") failed first: killed by SIGKILL")));
  EXPECT_TRUE(command.living().empty());
}

}  // namespace
}  // namespace lockstep::e2e
