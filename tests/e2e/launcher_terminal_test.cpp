// What a terminal that goes away does to a job (BR-087), on a real pseudo-terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/launcher_command.h"

namespace lockstep::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A session as sshd makes it: an interactive-like shell is the session leader, the job its child; `prefix` is nohup or
// setsid or nothing. The ranks say that they are up, and at their end, in files of `folder`.
std::vector<std::string> session(const std::string& prefix, const fs::path& folder) {
  const std::string rank =
      text("touch ", folder.string(), "/up.$RANK; sleep 1.5; touch ", folder.string(), "/done.$RANK");
  return {"-c", text(prefix, " ", Command::binary(), " run --nproc 2 -- sh -c '", rank, "' > ", folder.string(),
                     "/log 2>&1; echo $? > ", folder.string(), "/code.new; mv ", folder.string(), "/code.new ",
                     folder.string(), "/code")};
}

bool are_up(const fs::path& folder) {
  return Command::eventually([&] { return fs::exists(folder / "up.0") && fs::exists(folder / "up.1"); });
}

bool are_done(const fs::path& folder) {
  return Command::eventually([&] { return fs::exists(folder / "done.0") && fs::exists(folder / "done.1"); }, 6000);
}

TEST(LauncherTerminal, BR087i_UnderNohupAJobOutlivesItsTerminal) {
  TemporaryDirectory folder("lockstep-e2e");
  Command command(session("nohup", folder.path()), Command::Terminal::kOwn, "/bin/sh");
  ASSERT_TRUE(are_up(folder.path()));
  command.close_terminal();
  EXPECT_TRUE(are_done(folder.path())) << read_file(folder.path() / "log");
  EXPECT_TRUE(Command::eventually([&] { return command.living().empty(); }));
}

TEST(LauncherTerminal, BR087ii_WithoutNohupAJobStopsAndSaysWhy) {
  TemporaryDirectory folder("lockstep-e2e");
  // The launcher itself leads the session, so the kernel's hang-up reaches it.
  const std::string rank = text("touch ", folder.path().string(), "/up.$RANK; sleep 100 & sleep 100");
  Command command({"run", "--nproc", "2", "--", "sh", "-c", rank}, Command::Terminal::kOwn);
  ASSERT_TRUE(are_up(folder.path()));
  command.close_terminal();
  EXPECT_EQ(command.wait(), 129);
  EXPECT_THAT(command.err(), AllOf(HasSubstr("SIGHUP"), HasSubstr("the terminal went away")));
  EXPECT_TRUE(command.living().empty());
}

TEST(LauncherTerminal, BR087iii_UnderSetsidAJobOutlivesItsTerminal) {
  TemporaryDirectory folder("lockstep-e2e");
  Command command(session("setsid -w", folder.path()), Command::Terminal::kOwn, "/bin/sh");
  ASSERT_TRUE(are_up(folder.path()));
  command.close_terminal();
  EXPECT_TRUE(are_done(folder.path())) << read_file(folder.path() / "log");
  EXPECT_TRUE(Command::eventually([&] { return command.living().empty(); }));
}

TEST(LauncherTerminal, ACtrlCOnTheTerminalReachesTheRanksThroughTheLauncher) {
  TemporaryDirectory folder("lockstep-e2e");
  const std::string rank = text("trap 'touch ", folder.path().string(), "/got.$RANK; exit 0' INT; touch ",
                                folder.path().string(), "/up.$RANK; sleep 100 & wait");
  Command command({"run", "--nproc", "2", "--", "sh", "-c", rank}, Command::Terminal::kOwn);
  ASSERT_TRUE(are_up(folder.path()));
  command.type("\x03");
  EXPECT_EQ(command.wait(), 130);
  EXPECT_TRUE(fs::exists(folder.path() / "got.0") && fs::exists(folder.path() / "got.1"));
}

}  // namespace
}  // namespace lockstep::e2e
