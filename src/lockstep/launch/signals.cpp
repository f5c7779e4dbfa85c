#include "lockstep/launch/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep::launch {

namespace {

constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};

}  // namespace

StopSignals::StopSignals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGPIPE, SIGCHLD}) {
    Saved saved{signal, {}};
    ::sigaction(signal, nullptr, &saved.action);
    saved_.push_back(saved);
  }
  sigset_t caught;
  ::sigemptyset(&caught);
  for (const int signal : kStopSignals) {
    // A blocked signal is queued even when its action is "ignore", so nohup's SIGHUP must not be blocked at all.
    const bool stays_ignored = (signal == SIGHUP || signal == SIGTSTP) && was_ignored(signal);
    if (!stays_ignored) ::sigaddset(&caught, signal);
  }
  fd_ = UniqueFd(::signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw SystemError::from_errno("cannot watch for signals (signalfd)", errno);
  ::sigprocmask(SIG_BLOCK, &caught, &old_mask_);

  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, nullptr);
}

StopSignals::~StopSignals() {
  // What came in during the last moments was meant for the job: it must not hit the caller when the mask falls.
  while (take()) {
  }
  for (const auto& saved : saved_) ::sigaction(saved.signal, &saved.action, nullptr);
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

bool StopSignals::was_ignored(int signal) const {
  for (const auto& saved : saved_) {
    if (saved.signal == signal) return saved.action.sa_handler == SIG_IGN;
  }
  return false;
}

std::optional<int> StopSignals::take() {
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int signal = static_cast<int>(info.ssi_signo);
    const bool from_terminal = info.ssi_code == SI_KERNEL;
    if (from_terminal && was_ignored(signal)) continue;
    return signal;
  }
  return std::nullopt;
}

void StopSignals::stop_process() const noexcept {
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
}

void StopSignals::restore_in_child() const noexcept {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGPIPE, SIGCHLD}) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace lockstep::launch
