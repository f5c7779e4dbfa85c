#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "lockstep/base/rank_status.h"
#include "lockstep/base/world.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::api {

/// Lets ranks that are threads start one after the other, until each makes its first collective call: model weights
/// come from a process-wide generator, and replicas must draw the same ones.
class StartTurn {
 public:
  void wait_for(int rank);
  void release(int rank);

 private:
  std::mutex mutex_;
  std::condition_variable turned_;
  int turn_ = 0;
};

/// One rank's state behind Session.
class RankContext {
 public:
  World world;
  at::Device device{at::kCPU};
  std::uint64_t seed = 0;
  std::vector<std::string> arguments;
  comm::Communicator* communicator = nullptr;
  std::unique_ptr<comm::Communicator> device_communicator;  ///< null on the CPU; else `communicator` is this one
  const std::atomic<int>* stop_signal = nullptr;            ///< the signal that asked for a stop, 0 before
  StartTurn* start_turn = nullptr;                          ///< null unless ranks are threads
  bool is_engine_stopped = false;

  /// Before the first collective of this rank.
  void enter_collective();

 private:
  bool entered_ = false;
};

}  // namespace lockstep::api
