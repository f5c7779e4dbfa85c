// Signals, helpers that ranks start, and what is left when a job ends early.

#include "lockstep/launch/launcher.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/rank_status.h"
#include "lockstep/base/text.h"
#include "lockstep/host/process.h"
#include "lockstep/launch/environment.h"
#include "lockstep/launch/launcher_test.h"
#include "lockstep/launch/signals.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Launcher, ARankThatIgnoresSigtermAndAStoppedOneAreGoneAfterTheGrace) {
  auto options = shell(3,
                       "case $RANK in 0) trap '' TERM; sleep 100 & wait; sleep 100;; "
                       "1) sleep 0.3; exit 7;; 2) kill -STOP $$;; esac");
  options.environment["LAUNCHER_TEST_MARK"] = "ignores";
  const auto outcome = run(options);
  EXPECT_EQ(outcome.result.exit_code, 7);
  EXPECT_LT(outcome.seconds, 2.3);
  EXPECT_TRUE(living_with("LAUNCHER_TEST_MARK=ignores").empty());
}

TEST(Launcher, BR053_HelpersOfRanksAreGoneAlsoThoseThatLeftTheGroup) {
  for (const char* end : {"exit 0", "exit 4"}) {
    auto options =
        shell(2, text("sleep 100 & setsid sleep 100 & (setsid sh -c 'trap \"\" TERM; sleep 100 & wait; sleep "
                      "100' &) & sleep 0.3; ",
                      end));
    options.environment["LAUNCHER_TEST_MARK"] = "helpers";
    const auto outcome = run(options);
    EXPECT_EQ(outcome.result.exit_code, end[5] - '0');
    EXPECT_TRUE(living_with("LAUNCHER_TEST_MARK=helpers").empty());
    EXPECT_LT(outcome.seconds, 2.3);
  }
}

TEST(Launcher, BR053v_EarlierChildrenSurvive) {
  // One direct child, and one whose own child is orphaned to us while the job runs.
  const int before = ::fork();
  if (before == 0) {
    ::execl("/bin/sh", "sh", "-c", "sh -c 'sleep 0.2; sleep 321 & echo $! > /tmp/launcher-test-$PPID' & exec sleep 322",
            nullptr);
    ::_exit(1);
  }
  const std::string file = text("/tmp/launcher-test-", before);
  const auto outcome = run(shell(2, "sleep 0.7; sleep 100 & exit 1"));
  EXPECT_EQ(outcome.result.exit_code, 1);
  EXPECT_EQ(::waitpid(before, nullptr, WNOHANG), 0) << "the earlier child was ended";
  ASSERT_TRUE(fs::exists(file));
  const int orphan = std::stoi(read_file(file));
  const auto state = host::read_process(orphan);
  EXPECT_TRUE(state && !state->is_zombie()) << "the earlier child's orphan was ended";
  ::kill(before, SIGKILL);
  ::kill(orphan, SIGKILL);
  ::waitpid(before, nullptr, 0);
  fs::remove(file);
}

TEST(Launcher, BR053iii_KillingTheLauncherKillsTheJobAndItsTemporaryFolder) {
  LauncherProcess launcher(shell(2, "sleep 100 & setsid sleep 100 & echo file $TORCHELASTIC_ERROR_FILE; wait"));
  ASSERT_TRUE(launcher.wait_for_output("[rank 1] file"));
  ASSERT_TRUE(launcher.wait_for_living(6));
  const std::string output = launcher.output();
  const auto begin = output.find("[rank 1] file ") + 14;
  const fs::path folder = fs::path(output.substr(begin, output.find('\n', begin) - begin)).parent_path();
  EXPECT_TRUE(fs::exists(folder));
  ::kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_TRUE(launcher.wait_for_living(0));
  for (int i = 0; i < 100 && fs::exists(folder); ++i) ::usleep(10000);
  EXPECT_FALSE(fs::exists(folder)) << folder;
}

TEST(Launcher, BR053i_OneSignalLetsRanksFinishAndEachHasItsExitCode) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    LauncherProcess launcher(shell(2, "trap 'echo saved; exit 0' INT TERM; sleep 100 & echo up; wait"));
    ASSERT_TRUE(launcher.wait_for_output("[rank 0] up"));
    ASSERT_TRUE(launcher.wait_for_output("[rank 1] up"));
    ::kill(launcher.pid(), signal);
    EXPECT_EQ(launcher.wait(), 128 + signal);
    EXPECT_TRUE(launcher.living().empty());
    EXPECT_THAT(launcher.output(), AllOf(HasSubstr("[rank 0] saved"), HasSubstr("[rank 1] saved")));
    if (signal == SIGHUP) {
      EXPECT_THAT(launcher.output(), HasSubstr("the terminal went away"));
    }
  }
}

TEST(Launcher, BR053ii_TheSecondSignalKillsAtOnce) {
  LauncherProcess launcher(shell(2, "trap 'echo first' INT; sleep 100 & echo up; while :; do wait; done"));
  ASSERT_TRUE(launcher.wait_for_output("[rank 1] up"));
  const auto start = steady_clock::now();
  ::kill(launcher.pid(), SIGINT);
  std::this_thread::sleep_for(milliseconds(100));
  ::kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(), 130);
  EXPECT_LT(steady_clock::now() - start, milliseconds(1500));
  EXPECT_TRUE(launcher.living().empty());
}

TEST(Launcher, StopGraceEndsInAKill) {
  auto options = shell(2, "trap '' TERM; echo up; sleep 100; sleep 100");
  options.grace_after_stop = milliseconds(300);
  LauncherProcess launcher(options);
  ASSERT_TRUE(launcher.wait_for_output("[rank 1] up"));
  ASSERT_TRUE(launcher.wait_for_output("[rank 0] up"));
  const auto start = steady_clock::now();
  ::kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
  EXPECT_LT(steady_clock::now() - start, milliseconds(1500));
  EXPECT_TRUE(launcher.living().empty());
}

TEST(Launcher, BR053iv_SigtermAtAnyMomentOfTheStartLeavesNothing) {
  for (int delay_us = 0; delay_us < 40000; delay_us += 2500) {
    LauncherProcess launcher(shell(4, "sleep 100 & wait"), [] { ::prctl(PR_SET_PDEATHSIG, SIGKILL); });
    ::usleep(static_cast<unsigned>(delay_us));
    ::kill(launcher.pid(), SIGTERM);
    EXPECT_EQ(launcher.wait(), 143);
    EXPECT_TRUE(launcher.living().empty()) << "after " << delay_us << " us";
  }
}

TEST(Launcher, BR087_AnIgnoredSighupStaysIgnoredInTheRanksToo) {
  LauncherProcess launcher(shell(2, "kill -HUP $$; echo still here; sleep 0.5; echo done"),
                           [] { ::signal(SIGHUP, SIG_IGN); });
  ASSERT_TRUE(launcher.wait_for_output("[rank 1] still here"));
  ::kill(launcher.pid(), SIGHUP);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_THAT(launcher.output(), AllOf(HasSubstr("[rank 0] done"), HasSubstr("[rank 1] done")));
}

TEST(Launcher, AnIgnoredSigintIsObeyedWhenAProcessSendsIt) {
  LauncherProcess launcher(shell(1, "sleep 100 & echo up; wait"), [] { ::signal(SIGINT, SIG_IGN); });
  ASSERT_TRUE(launcher.wait_for_output("up"));
  ::kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(), 130);
}

TEST(Launcher, RestoresSignalsAndSubreaper) {
  struct sigaction before {};
  sigset_t mask_before;
  ::sigaction(SIGPIPE, nullptr, &before);
  ::sigprocmask(SIG_BLOCK, nullptr, &mask_before);
  run(shell(1, "exit 0"));
  struct sigaction after {};
  sigset_t mask_after;
  ::sigaction(SIGPIPE, nullptr, &after);
  ::sigprocmask(SIG_BLOCK, nullptr, &mask_after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    EXPECT_EQ(::sigismember(&mask_before, signal), ::sigismember(&mask_after, signal));
  }
  int subreaper = 1;
  ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  EXPECT_EQ(subreaper, 0);
}

TEST(Launcher, RanksStartWithACleanSignalState) {
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  const auto outcome = run(shell(1, "grep -E 'Sig(Blk|Ign)' /proc/self/status; readlink /proc/self/fd/0"));
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_THAT(outcome.out, HasSubstr("SigBlk:\t0000000000000000"));
  EXPECT_THAT(outcome.out, HasSubstr("SigIgn:\t0000000000000000"));
  EXPECT_THAT(outcome.out, HasSubstr("/dev/null"));
}

}  // namespace
}  // namespace lockstep::launch
