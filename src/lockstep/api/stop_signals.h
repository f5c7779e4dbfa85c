#pragma once

#include <atomic>

namespace lockstep::api {

/// While it lives, SIGTERM, SIGINT and SIGHUP do not end the process but are remembered, so that training can stop at a
/// step boundary; a second signal ends the process at once, as by default. A SIGHUP that is ignored stays ignored.
/// The handler needs a static word: at most one object lives at a time.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  /// 0, or the first signal that came.
  const std::atomic<int>& signal() const noexcept;
};

}  // namespace lockstep::api
