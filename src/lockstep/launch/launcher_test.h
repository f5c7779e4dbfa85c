#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/host/process.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launch {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

struct Outcome {
  LaunchResult result;
  std::string out;
  std::string err;
  double seconds = 0;
};

inline LaunchOptions shell(int num_processes, const std::string& script) {
  LaunchOptions options;
  options.command = {"/bin/sh", "-c", script};
  options.num_processes = num_processes;
  options.store_server = StoreServer::kRankZero;
  return options;
}

inline Outcome run(const LaunchOptions& options) {
  Outcome outcome;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto start = steady_clock::now();
  try {
    outcome.result = launch(options);
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    ::testing::internal::GetCapturedStderr();
    throw;
  }
  outcome.seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

inline std::vector<int> living_with(const std::string& variable) {
  std::vector<int> pids;
  for (const auto& process : host::list_processes()) {
    if (!process.is_zombie() && host::was_started_with(process.pid, variable)) pids.push_back(process.pid);
  }
  return pids;
}

// Runs launch() in a process of its own, so that the test can send it signals. Its exit code is the launcher's.
class LauncherProcess {
 public:
  explicit LauncherProcess(LaunchOptions options, const std::function<void()>& before = {}) {
    static int counter = 0;
    mark_ = text("LAUNCHER_TEST_MARK=", ::getpid(), ".", ++counter);
    options.environment["LAUNCHER_TEST_MARK"] = mark_.substr(mark_.find('=') + 1);
    output_ = folder_.path() / "output";
    pid_ = ::fork();
    if (pid_ != 0) return;
    if (std::freopen(output_.c_str(), "w", stdout) == nullptr || ::dup2(STDOUT_FILENO, STDERR_FILENO) < 0) ::_exit(91);
    if (before) before();
    try {
      ::_exit(launch(options).exit_code);
    } catch (const Error& error) {
      ::_exit(error.exit_code());
    }
  }
  ~LauncherProcess() {
    if (pid_ > 0 && !reaped_) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }

  int pid() const { return pid_; }
  std::string output() const { return read_file(output_); }
  std::vector<int> living() const { return living_with(mark_); }
  fs::path path(const std::string& name) const { return folder_.path() / name; }

  bool wait_for_output(const std::string& words) const {
    for (int i = 0; i < 500; ++i, ::usleep(10000)) {
      if (fs::exists(output_) && output().find(words) != std::string::npos) return true;
    }
    return false;
  }
  bool wait_for_living(std::size_t count) const {
    for (int i = 0; i < 500; ++i, ::usleep(10000)) {
      if (living().size() == count) return true;
    }
    return false;
  }
  /// Exit code, or 128+signal.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    reaped_ = true;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  TemporaryDirectory folder_{"launcher-test"};
  std::string mark_;
  fs::path output_;
  int pid_ = 0;
  bool reaped_ = false;
};

}  // namespace lockstep::launch
