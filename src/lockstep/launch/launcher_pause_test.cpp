// Ctrl-Z: a stopped launcher stops its job too, and takes it along when it goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "lockstep/launch/launcher_test.h"

namespace lockstep::launch {
namespace {

// Two ranks, each with a helper in a session of its own, that end once the file `go` is there.
LaunchOptions patient_job(const fs::path& go) {
  const std::string loop = text("while ! test -e ", go.string(), "; do sleep 0.02; done");
  return shell(2, text("setsid sh -c '", loop, "' & echo rank $RANK runs; ", loop, "; wait"));
}

// As an interactive shell starts a job: in a process group of its own.
void leave_group() {
  ::setpgid(0, 0);
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i, ::usleep(10000)) {
    if (condition()) return true;
  }
  return false;
}

bool is_stopped(int pid) {
  const auto process = host::read_process(pid);
  return process && process->state == 'T';
}

// SIGSTOP takes effect when the process is next scheduled. A shell whose child was stopped between vfork and exec waits
// for it uninterruptibly: it rests as well.
bool is_at_rest(int pid) {
  const auto process = host::read_process(pid);
  if (!process || process->state == 'T') return true;
  if (process->state != 'D') return false;
  const auto all = host::list_processes();
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& other) { return other.parent == pid && is_stopped(other.pid); });
}

TEST(LauncherPause, StopsAndContinuesTheWholeJob) {
  const TemporaryDirectory folder("launcher-pause");
  LauncherProcess launcher(patient_job(folder.path() / "go"), leave_group);
  ASSERT_TRUE(launcher.wait_for_output("rank 0 runs") && launcher.wait_for_output("rank 1 runs"));
  ::kill(launcher.pid(), SIGTSTP);
  ASSERT_TRUE(eventually([&] { return is_stopped(launcher.pid()); }));
  const auto job = launcher.living();
  EXPECT_GE(job.size(), 4u);
  EXPECT_TRUE(eventually([&] { return std::all_of(job.begin(), job.end(), is_at_rest); }));
  EXPECT_EQ(launcher.living(), job);
  ::kill(launcher.pid(), SIGCONT);
  std::ofstream(folder.path() / "go") << "\n";
  EXPECT_EQ(launcher.wait(), 0) << launcher.output();
  EXPECT_TRUE(launcher.living().empty());
}

TEST(LauncherPause, BR053_KillingAStoppedLauncherLeavesNothing) {
  const TemporaryDirectory folder("launcher-pause");
  LauncherProcess launcher(patient_job(folder.path() / "go"), leave_group);
  ASSERT_TRUE(launcher.wait_for_output("rank 0 runs") && launcher.wait_for_output("rank 1 runs"));
  ::kill(launcher.pid(), SIGTSTP);
  ASSERT_TRUE(eventually([&] { return is_stopped(launcher.pid()); }));
  ::kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_TRUE(launcher.wait_for_living(0));
}

// Nobody could continue it: the system ignores SIGTSTP there, and so must the job.
TEST(LauncherPause, GoesOnWhereNoShellCouldContinueIt) {
  const TemporaryDirectory folder("launcher-pause");
  LauncherProcess launcher(patient_job(folder.path() / "go"), [] { ::setsid(); });
  ASSERT_TRUE(launcher.wait_for_output("rank 0 runs") && launcher.wait_for_output("rank 1 runs"));
  ::kill(launcher.pid(), SIGTSTP);
  std::ofstream(folder.path() / "go") << "\n";
  EXPECT_EQ(launcher.wait(), 0) << launcher.output();
}

}  // namespace
}  // namespace lockstep::launch
