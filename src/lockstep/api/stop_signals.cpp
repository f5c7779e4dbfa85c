#include "lockstep/api/stop_signals.h"

#include <array>
#include <csignal>

#include "lockstep/base/error.h"

namespace lockstep::api {

namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP};
std::atomic<int> first_signal{0};  // written by the handler; lock-free, so that this is allowed
std::atomic<bool> is_installed{false};

void remember(int number) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, number)) return;
  std::signal(number, SIG_DFL);
  std::raise(number);
}

}  // namespace

StopSignals::StopSignals() {
  static_assert(std::atomic<int>::is_always_lock_free);
  LOCKSTEP_CHECK(!is_installed.exchange(true));
  first_signal = 0;
  for (const int number : kSignals) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;
    ::sigaction(number, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (const int number : kSignals) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler == remember) std::signal(number, SIG_DFL);
  }
  is_installed = false;
}

const std::atomic<int>& StopSignals::signal() const noexcept {
  return first_signal;
}

}  // namespace lockstep::api
