#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/comm/device_api.h"

namespace lockstep::comm {

// Note [GPUs of one process]
// With peer access between two GPUs of a process, cudaMalloc on one may wait until the other is idle. A rank's thread
// that is in it then waits for a kernel of NCCL on the other GPU, which waits for this rank's, which is not launched
// yet: neither goes on. So ranks that are threads meet on the host for every collective, and the last to come launches
// it on all GPUs: whatever NCCL waits for is queued by then. Meeting costs a few microseconds.

/// Launches the collectives of ranks that are threads of one process, all GPUs' at once.
class LaunchGroup {
 public:
  LaunchGroup(const NcclApi& nccl, int size) : nccl_(nccl), size_(static_cast<std::size_t>(size)) {}
  LaunchGroup(const LaunchGroup&) = delete;
  LaunchGroup& operator=(const LaunchGroup&) = delete;

  /// Brings one rank's call; returns NCCL's code once it is launched with those of all the others. Returns nothing,
  /// without a launch, when `is_over` becomes true for some rank meanwhile: after that nobody launches any more.
  std::optional<int> launch(std::function<int()> call, const std::function<bool()>& is_over);

 private:
  const NcclApi nccl_;
  const std::size_t size_;
  std::mutex mutex_;
  std::condition_variable launched_;
  std::vector<std::function<int()>> calls_;
  std::size_t generation_ = 0;
  int code_ = 0;  // of the generation before
  bool is_broken_ = false;
};

}  // namespace lockstep::comm
