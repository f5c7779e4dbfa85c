#include "lockstep/launch/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "lockstep/base/error.h"
#include "lockstep/host/process.h"
#include "lockstep/launch/child.h"

namespace lockstep::launch {

namespace {

// Descriptors of the launcher (a pipe to a pager, a terminal) must not be held open by the guard.
int keep_only(int fd) noexcept {
  const int null_fd = ::open("/dev/null", O_RDWR);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null_fd, standard);
  if (fd != 3) ::dup2(fd, 3);
  if (::syscall(SYS_close_range, 4u, ~0u, 0) != 0) {  // Linux 5.9; before that, one by one
    const long limit = ::sysconf(_SC_OPEN_MAX);
    for (int other = 4; other < (limit > 0 ? limit : 1024); ++other) ::close(other);
  }
  return 3;
}

// Every process of the job but this one: in its group, or started with its mark (it had left the group).
bool kill_job(const std::string& job_mark) {
  bool found = false;
  for (const auto& process : host::list_processes()) {
    if (process.pid == ::getpid() || process.is_zombie()) continue;
    if (process.group != ::getpid() && !host::was_started_with(process.pid, job_mark)) continue;
    found = host::send_signal(process, SIGKILL) || found;
  }
  return found;
}

[[noreturn]] void guard_job(int lifeline, const std::string& job_mark, const std::filesystem::path& folder) {
  ::setpgid(0, 0);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "lockstep-guard");
  lifeline = keep_only(lifeline);
  char byte = 0;
  while (::read(lifeline, &byte, 1) < 0 && errno == EINTR) {
  }
  // A process that is being started while the list is read shows up in the next one.
  for (int quiet_rounds = 0, round = 0; quiet_rounds < 3 && round < 200; ++round) {
    quiet_rounds = kill_job(job_mark) ? 0 : quiet_rounds + 1;
    ::usleep(10000);
  }
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  ::kill(0, SIGKILL);
  ::_exit(0);
}

}  // namespace

Guard::Guard(const std::string& job_mark, const std::filesystem::path& temporary_folder) {
  Pipe pipe = make_pipe();
  ::fcntl(pipe.read.get(), F_SETFL, 0);
  pid_ = ::fork();
  if (pid_ < 0) throw SystemError::from_errno("cannot start the job's guard (fork)", errno);
  if (pid_ == 0) {
    pipe.write.reset();
    guard_job(pipe.read.get(), job_mark, temporary_folder);
  }
  ::setpgid(pid_, pid_);
  lifeline_ = std::move(pipe.write);
}

void Guard::kill_group() const noexcept {
  ::kill(-pid_, SIGKILL);
}

Guard::~Guard() {
  kill_group();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep::launch
