#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::doctor {

/// How a program ended and what it wrote.
struct CommandOutput {
  bool started = false;
  bool timed_out = false;
  int exit_code = -1;  ///< when it exited by itself
  int signal = 0;      ///< when a signal ended it
  std::string out;
  std::string err;

  bool ok() const noexcept { return started && !timed_out && signal == 0 && exit_code == 0; }
  std::string first_line() const;  ///< of `out`
};

using CommandRunner = std::function<CommandOutput(const std::vector<std::string>&, std::chrono::milliseconds)>;

/// Runs a program (looked up in PATH) with an empty standard input and waits for it. After `timeout` it and everything
/// it started in its process group is killed. Keeps the first 1 MiB of each stream. Never throws for a program that is
/// missing: `started` is false then. Throws SystemError when the system has no processes or descriptors left.
CommandOutput run_command(const std::vector<std::string>& command, std::chrono::milliseconds timeout);

}  // namespace lockstep::doctor
