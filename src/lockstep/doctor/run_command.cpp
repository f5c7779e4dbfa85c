#include "lockstep/doctor/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxStreamBytes = 1 << 20;
constexpr int kExecFailed = 127;

struct Pipe {
  UniqueFd read, write;

  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError::from_errno("pipe2", errno);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
};

/// In the child, after fork: only async-signal-safe calls.
[[noreturn]] void become(char* const* arguments, int out, int err, int exec_error) {
  setpgid(0, 0);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execvp(arguments[0], arguments);
  const int reason = errno;
  [[maybe_unused]] const auto written = write(exec_error, &reason, sizeof(reason));
  _exit(kExecFailed);
}

/// Appends what is there; returns false at the end of the stream.
bool take(int fd, std::string& into) {
  std::array<char, 16384> buffer;
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  if (count < 0) return errno == EINTR;
  if (into.size() < kMaxStreamBytes) into.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

/// Reads both streams until they end; false when `deadline` passed before.
bool read_streams(int out, int err, Clock::time_point deadline, CommandOutput& output) {
  std::array<pollfd, 2> streams{{{out, POLLIN, 0}, {err, POLLIN, 0}}};
  while (streams[0].fd >= 0 || streams[1].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    const int ready = poll(streams.data(), streams.size(), static_cast<int>(left));
    if (ready < 0 && errno != EINTR) throw SystemError::from_errno("poll", errno);
    if (ready <= 0) continue;
    if (streams[0].revents != 0 && !take(out, output.out)) streams[0].fd = -1;
    if (streams[1].revents != 0 && !take(err, output.err)) streams[1].fd = -1;
  }
  return true;
}

/// Waits for `child` until `deadline`; false when it still runs then.
bool reap(pid_t child, Clock::time_point deadline, int& status) {
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return true;
    if (ended < 0 && errno != EINTR) throw SystemError::from_errno("waitpid", errno);
    if (Clock::now() >= deadline) return false;
    usleep(1000);
  }
}

}  // namespace

std::string CommandOutput::first_line() const {
  return split(out, '\n').front();
}

CommandOutput run_command(const std::vector<std::string>& command, std::chrono::milliseconds timeout) {
  LOCKSTEP_CHECK(!command.empty());
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const auto deadline = Clock::now() + timeout;

  Pipe out, err, exec_error;
  const pid_t child = fork();
  if (child < 0) throw SystemError::from_errno("fork", errno);
  if (child == 0) become(arguments.data(), out.write.get(), err.write.get(), exec_error.write.get());
  out.write.reset();
  err.write.reset();
  exec_error.write.reset();

  CommandOutput output;
  int status = 0;
  output.timed_out = !read_streams(out.read.get(), err.read.get(), deadline, output) || !reap(child, deadline, status);
  if (output.timed_out) {
    kill(-child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  // The pipe closes on exec: something in it means that exec failed.
  std::string reason;
  take(exec_error.read.get(), reason);
  output.started = reason.empty();
  if (WIFSIGNALED(status)) output.signal = WTERMSIG(status);
  if (WIFEXITED(status)) output.exit_code = WEXITSTATUS(status);
  return output;
}

}  // namespace lockstep::doctor
