#include "lockstep/launch/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {

namespace {

std::string hint_for_script(const std::string& program) {
  if (program.ends_with(".py")) return text("put the interpreter in front: lockstep run -- python3 ", program);
  return "a script needs a first line such as #!/bin/sh and `chmod +x`";
}

// nullptr when `path` can be executed, else the reason.
const char* why_not_executable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::strerror(errno);
  if (S_ISDIR(status.st_mode)) return "is a folder";
  if (::access(path.c_str(), X_OK) != 0) return "is not executable";
  return nullptr;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const auto& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

struct Prepared {
  const ChildRequest* request;
  const StopSignals* signals;
  char** arguments;
  char** environment;
  int parent;
  int null_fd;
  int report_fd;
};

// Runs between fork and exec: async-signal-safe calls only. Ends in exec or reports errno and exits.
[[noreturn]] void run_child(const Prepared& prepared) noexcept {
  const ChildRequest& request = *prepared.request;
  ::setpgid(0, request.group);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above took effect.
  if (::getppid() != prepared.parent) ::_exit(1);
  prepared.signals->restore_in_child();
  bool ready = ::dup2(prepared.null_fd, STDIN_FILENO) >= 0 && ::dup2(request.stdout_fd, STDOUT_FILENO) >= 0 &&
               ::dup2(request.stderr_fd, STDERR_FILENO) >= 0;
  for (const int fd : request.inherited_fds) ready = ready && ::fcntl(fd, F_SETFD, 0) == 0;
  if (ready) ::execve(request.executable.c_str(), prepared.arguments, prepared.environment);
  const int error_number = errno;
  [[maybe_unused]] const ssize_t reported = ::write(prepared.report_fd, &error_number, sizeof(error_number));
  ::_exit(127);
}

}  // namespace

std::string find_program(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    const char* reason = why_not_executable(program);
    if (reason == nullptr) return program;
    throw ConfigError(text("cannot run '", program, "': ", reason),
                      std::string_view(reason) == "is not executable" ? hint_for_script(program) : "");
  }
  const char* variable = std::getenv("PATH");
  const std::string path = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (const auto& folder : split(path, ':')) {
    const std::string candidate = text(folder.empty() ? "." : folder, "/", program);
    if (!program.empty() && why_not_executable(candidate) == nullptr) return candidate;
  }
  if (!program.empty() && ::access(program.c_str(), F_OK) == 0) {
    const bool executable = why_not_executable(program) == nullptr;
    throw ConfigError(text("cannot run '", program, "': it is not in PATH, but a file of that name is in this folder"),
                      executable ? text("write ./", program) : hint_for_script(program));
  }
  throw ConfigError(text("cannot run '", program, "': no such program in PATH"));
}

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw SystemError::from_errno("cannot make a pipe", errno);
  Pipe pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
  // Only the reading end: a child must find ordinary, blocking descriptors.
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

int start_child(const ChildRequest& request, const StopSignals& signals) {
  const UniqueFd null_fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_fd) throw SystemError::from_errno("cannot open /dev/null", errno);
  Pipe report = make_pipe();
  ::fcntl(report.read.get(), F_SETFL, 0);
  auto arguments = pointers(request.command);
  auto environment = pointers(request.environment);
  const Prepared prepared{&request,   &signals,      arguments.data(),  environment.data(),
                          ::getpid(), null_fd.get(), report.write.get()};
  const int pid = ::fork();
  if (pid == 0) run_child(prepared);
  if (pid < 0) throw SystemError::from_errno("cannot start a process (fork)", errno);
  ::setpgid(pid, request.group);  // also here, so that the group holds the child before anyone signals it
  report.write.reset();

  int error_number = 0;
  ssize_t got = 0;
  do {
    got = ::read(report.read.get(), &error_number, sizeof(error_number));
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof(error_number))) return pid;
  ::waitpid(pid, nullptr, 0);
  throw ConfigError(text("cannot run '", request.command.front(), "': ", std::strerror(error_number)),
                    error_number == ENOEXEC ? hint_for_script(request.command.front()) : "");
}

}  // namespace lockstep::launch
