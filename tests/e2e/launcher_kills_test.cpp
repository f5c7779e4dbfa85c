// Many repeats at random moments; slow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <random>

#include "e2e/launcher_command.h"

namespace lockstep::e2e {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

std::vector<std::string> shell(int nproc, const std::string& script) {
  return {"run", "--nproc-per-node", text(nproc), "--", "/bin/sh", "-c", script};
}

TEST(LauncherKills, BR082_FiftyRandomKillsNameTheRankAndLeaveNothing) {
  std::mt19937 random(20261130);
  for (int repeat = 0; repeat < 50; ++repeat) {
    Command command(shell(4, "sleep 100 & sleep 100 & wait"));
    const int victim = static_cast<int>(random() % 4);
    int pid = 0;
    ASSERT_TRUE(Command::eventually([&] { return (pid = command.rank_pid(victim)) != 0; })) << command.err();
    ::usleep(static_cast<unsigned>(random() % 60000));
    ::kill(pid, SIGKILL);
    const auto start = steady_clock::now();
    EXPECT_EQ(command.wait(), 137);
    EXPECT_TRUE(command.living().empty());
    EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(2));
    EXPECT_THAT(command.err(), HasSubstr(text("lockstep: rank ", victim, " (host "))) << repeat;
    EXPECT_THAT(command.err(), HasSubstr(text("pid ", pid, ") failed first: killed by SIGKILL\n")));
  }
}

// The peers notice at once, as ranks in a collective do, and fail by themselves: the killed one must still be named.
TEST(LauncherKills, BR082_APeerThatFailsInTheSameInstantIsNotBlamed) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    TemporaryDirectory folder("lockstep-e2e");
    const std::string fifo = (folder.path() / "fifo").string();
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    Command command(shell(3, text("if test $RANK = 1; then exec 3>", fifo, "; touch ", folder.path().string(),
                                  "/up; exec sleep 100; else read word < ", fifo, "; exit 1; fi")));
    ASSERT_TRUE(Command::eventually([&] { return fs::exists(folder.path() / "up"); })) << command.err();
    ::kill(command.rank_pid(1), SIGKILL);
    EXPECT_EQ(command.wait(), 137) << command.err();
    EXPECT_THAT(command.err(), HasSubstr("lockstep: rank 1 (host ")) << command.err();
  }
}

TEST(LauncherKills, BR053iii_TwentyRandomKillsOfTheLauncher) {
  std::mt19937 random(7);
  // Its temporary folder goes too, whatever the moment: all of them are made in this one.
  TemporaryDirectory temporary("lockstep-e2e");
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<std::string> words{text("TMPDIR=", temporary.path().string()), Command::binary()};
    for (auto& word : shell(4, "sleep 100 & setsid sleep 100 & wait")) words.push_back(word);
    Command command(words, Command::Terminal::kNone, "env");
    ::usleep(static_cast<unsigned>(random() % 80000));
    ::kill(command.pid(), SIGKILL);
    EXPECT_EQ(command.wait(), 137);
    EXPECT_TRUE(Command::eventually([&] { return command.living().empty(); }, 3000)) << repeat;
    EXPECT_TRUE(fs::is_empty(temporary.path())) << repeat;
  }
}

TEST(LauncherKills, BR041i_FiftyTimesRankZeroLeavesFirst) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    Command command(shell(2, "test $RANK = 0 || sleep 0.2"));
    EXPECT_EQ(command.wait(), 0) << command.err();
  }
}

}  // namespace
}  // namespace lockstep::e2e
