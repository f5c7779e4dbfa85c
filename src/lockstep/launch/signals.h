#pragma once

#include <csignal>
#include <optional>
#include <vector>

#include "lockstep/base/file.h"

namespace lockstep::launch {

/// Takes over the stop signals of this process for its lifetime and gives everything back at the end: SIGINT, SIGTERM,
/// SIGHUP and SIGQUIT, and SIGTSTP (Ctrl-Z), become readable on a descriptor; SIGPIPE is ignored (a reader of our
/// output that went away must not kill the job); SIGCHLD gets its default action, since an inherited SIG_IGN would
/// throw exit codes away.
///
/// A SIGHUP that was ignored at start (nohup) stays ignored. A SIGINT or SIGQUIT that was ignored at start (a shell's
/// background job) is obeyed only when a process sent it, not when a terminal's key did.
///
/// One thread only: other threads would receive the signals instead.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Readable when take() has something.
  int fd() const noexcept { return fd_.get(); }

  /// The next of these signals that came in, if any; does not wait. The answer to SIGTSTP is stop_process().
  std::optional<int> take();

  /// Stops this process as SIGTSTP does by itself, and returns when it is continued; at once where the system ignores
  /// SIGTSTP because no shell could continue the process.
  void stop_process() const noexcept;

  /// In a child between fork and exec: the mask and the actions that a program expects at its start. Async-signal-safe.
  void restore_in_child() const noexcept;

 private:
  struct Saved {
    int signal;
    struct sigaction action;
  };
  bool was_ignored(int signal) const;

  UniqueFd fd_;
  sigset_t old_mask_{};
  std::vector<Saved> saved_;
};

}  // namespace lockstep::launch
