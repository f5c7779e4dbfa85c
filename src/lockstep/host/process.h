#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file.h"

namespace lockstep::host {

/// One process as /proc/<pid>/stat shows it. (pid, start_ticks) names a process for good; a pid alone may be reused.
struct ProcessInfo {
  int pid = 0;
  int parent = 0;
  int group = 0;
  char state = '?';      ///< R, S, D, T, Z, ...
  bool exiting = false;  ///< already inside exit: it will not run its own code again
  std::uint64_t start_ticks = 0;

  bool is_zombie() const noexcept { return state == 'Z' || state == 'X'; }
};

/// The fields of one line of /proc/<pid>/stat; the name in it may hold blanks and parentheses. nullopt when malformed.
std::optional<ProcessInfo> parse_process_stat(std::string_view line);

/// nullopt when there is no such process (any more).
std::optional<ProcessInfo> read_process(int pid);

/// Every process that this one can see.
std::vector<ProcessInfo> list_processes();

/// The descendants of `root`, parents before children. A child for which `enter` returns false is left out with all
/// below it.
std::vector<ProcessInfo> descendants(const std::vector<ProcessInfo>& processes, int root,
                                     const std::function<bool(const ProcessInfo&)>& enter);

/// Whether the environment that the process was started with holds `assignment` ("NAME=value"). False when it cannot
/// be read (another user's process).
bool was_started_with(int pid, std::string_view assignment);

/// A descriptor that becomes readable when the process ends; empty when the kernel has no pidfds (before 5.3) or
/// there is no such process.
UniqueFd open_process(int pid);

/// Sends a signal to exactly this process: never to another one that got the same pid since. False when it is gone.
bool send_signal(const ProcessInfo& process, int signal);

/// Waits for a child of this process and reaps it; returns the status as waitpid() does, -1 when it is no child.
int wait_for(int pid);

/// "SIGKILL", "signal 42".
std::string signal_name(int signal);

}  // namespace lockstep::host
