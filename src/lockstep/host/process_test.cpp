#include "lockstep/host/process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace lockstep::host {
namespace {

TEST(Process, StatLineWithBlanksAndParenthesesInTheName) {
  const auto info = parse_process_stat(
      "42 (a) b (c) S 7 40 40 0 -1 4194308 1 2 3 4 5 6 7 8 20 0 1 0 123456 1000 10 18446744073709551615 1 1");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->pid, 42);
  EXPECT_EQ(info->parent, 7);
  EXPECT_EQ(info->group, 40);
  EXPECT_EQ(info->state, 'S');
  EXPECT_TRUE(info->exiting);
  EXPECT_EQ(info->start_ticks, 123456u);
}

TEST(Process, MalformedStatLines) {
  EXPECT_FALSE(parse_process_stat(""));
  EXPECT_FALSE(parse_process_stat("42 (a) S 7"));
  EXPECT_FALSE(parse_process_stat("42 )a( S 7 40 40 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 123456"));
}

TEST(Process, FindsItselfAndItsDescendants) {
  const auto self = read_process(::getpid());
  ASSERT_TRUE(self);
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_EQ(self->group, ::getpgrp());

  const int child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto all = list_processes();
  const auto below = descendants(all, ::getpid(), [](const ProcessInfo&) { return true; });
  ASSERT_EQ(below.size(), 1u);
  EXPECT_EQ(below[0].pid, child);
  EXPECT_TRUE(descendants(all, ::getpid(), [&](const ProcessInfo& p) { return p.pid != child; }).empty());

  ProcessInfo other = below[0];
  ++other.start_ticks;
  EXPECT_FALSE(send_signal(other, SIGKILL)) << "same pid, another process";
  EXPECT_TRUE(send_signal(below[0], SIGKILL));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(read_process(child));
}

TEST(Process, StartedWith) {
  const int child = ::fork();
  if (child == 0) {
    const char* const arguments[] = {"sleep", "10", nullptr};
    const char* const environment[] = {"A=1", "JOB=xyz", nullptr};
    ::execve("/bin/sleep", const_cast<char* const*>(arguments), const_cast<char* const*>(environment));
    ::_exit(1);
  }
  bool found = false;
  for (int i = 0; i < 200 && !found; ++i, ::usleep(10000)) found = was_started_with(child, "JOB=xyz");
  EXPECT_TRUE(found);
  EXPECT_FALSE(was_started_with(child, "JOB=xy"));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Process, SignalNames) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(SIGHUP), "SIGHUP");
  EXPECT_EQ(signal_name(50), "signal 50");
}

}  // namespace
}  // namespace lockstep::host
