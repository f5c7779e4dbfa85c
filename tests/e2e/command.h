#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/file.h"

namespace lockstep::e2e {

struct CommandOptions {
  std::map<std::string, std::optional<std::string>> environment = {};  ///< set, or unset with nullopt
  std::filesystem::path folder = ".";                                  ///< where it runs
  std::chrono::milliseconds timeout{60000};
};

struct CommandResult {
  int exit_code = 0;  ///< 128 + signal when a signal ended it
  int signal = 0;
  bool timed_out = false;
  std::string out;
  std::string err;
  std::chrono::duration<double> duration{};
};

/// A program that runs beside the test, with standard output and error kept in files. Killed when it outlives its
/// timeout or this object.
class RunningCommand {
 public:
  RunningCommand(const std::vector<std::string>& command, const CommandOptions& options) : timeout_(options.timeout) {
    std::vector<char*> argv;
    for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    // Made here, so that they can be read before the child has come that far.
    for (const char* name : {"out", "err"}) std::ofstream(folder_.path() / name).flush();
    begin_ = end_ = std::chrono::steady_clock::now();
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) run_child(argv, options);
  }
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;
  ~RunningCommand() {
    if (!reaped_) wait(std::chrono::milliseconds(0));
  }

  int pid() const noexcept { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  std::string out() const { return read_file(folder_.path() / "out"); }
  std::string err() const { return read_file(folder_.path() / "err"); }

  /// Waits until standard error or output holds `words`; false when the program ends or `limit` passes before.
  bool wait_for(const std::string& words, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      if ((out() + err()).find(words) != std::string::npos) return true;
      if (poll()) return (out() + err()).find(words) != std::string::npos;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  CommandResult wait() { return wait(timeout_); }

 private:
  [[noreturn]] void run_child(std::vector<char*>& argv, const CommandOptions& options) const {
    const auto redirect = [](int fd, const std::filesystem::path& path, int flags) {
      const int opened = ::open(path.c_str(), flags, 0600);
      if (opened < 0 || ::dup2(opened, fd) < 0) ::_exit(126);
      ::close(opened);
    };
    redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
    redirect(STDOUT_FILENO, folder_.path() / "out", O_WRONLY | O_CREAT | O_APPEND);
    redirect(STDERR_FILENO, folder_.path() / "err", O_WRONLY | O_CREAT | O_APPEND);
    for (const auto& [name, value] : options.environment) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
    if (::chdir(options.folder.c_str()) != 0) ::_exit(126);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }

  bool poll() {
    if (!reaped_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) {
      reaped_ = true;
      end_ = std::chrono::steady_clock::now();
    }
    return reaped_;
  }

  CommandResult wait(std::chrono::milliseconds timeout) {
    CommandResult result;
    while (!poll()) {
      if (std::chrono::steady_clock::now() - begin_ > timeout) {
        result.timed_out = true;
        ::kill(pid_, SIGKILL);
        while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
        }
        reaped_ = true;
        end_ = std::chrono::steady_clock::now();
        break;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    result.signal = WIFSIGNALED(status_) ? WTERMSIG(status_) : 0;
    result.exit_code = result.signal != 0 ? 128 + result.signal : WEXITSTATUS(status_);
    result.out = out();
    result.err = err();
    result.duration = end_ - begin_;
    return result;
  }

  TemporaryDirectory folder_{"lockstep-command"};
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point begin_, end_;
  int pid_ = -1;
  int status_ = 0;
  bool reaped_ = false;
};

inline CommandResult run_command(const std::vector<std::string>& command, const CommandOptions& options = {}) {
  return RunningCommand(command, options).wait();
}

/// A path in the build folder, such as "bin/lockstep".
inline std::string built(const std::string& path) {
  const char* folder = std::getenv("LOCKSTEP_BUILD_DIR");
  if (folder == nullptr) throw std::runtime_error("LOCKSTEP_BUILD_DIR is not set: run the tests through ctest");
  return std::string(folder) + "/" + path;
}

}  // namespace lockstep::e2e
