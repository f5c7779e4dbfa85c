#pragma once

#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/launch/signals.h"

namespace lockstep::launch {

/// What a new process gets. Standard input is /dev/null.
struct ChildRequest {
  std::string executable;                ///< path, as find_program() returns it
  std::vector<std::string> command;      ///< argv, the program's name first
  std::vector<std::string> environment;  ///< "NAME=value", complete
  int group = 0;                         ///< process group to join
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<int> inherited_fds;  ///< close-on-exec descriptors that this child may keep, under the same number
};

/// The path of `program`: itself when it holds a slash, else the first executable of that name in PATH.
/// Throws ConfigError that says what is wrong with it: not there, a folder, not executable.
std::string find_program(const std::string& program);

/// Starts a process that dies with this one (parent-death signal). `signals` gives it a clean signal state.
/// Throws ConfigError with the reason when it cannot be executed, SystemError when there can be no new process;
/// nothing is left then. Returns the pid.
int start_child(const ChildRequest& request, const StopSignals& signals);

/// A pipe, both ends close-on-exec, the reading end non-blocking.
struct Pipe {
  UniqueFd read;
  UniqueFd write;
};
Pipe make_pipe();

}  // namespace lockstep::launch
