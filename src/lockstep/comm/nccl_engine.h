#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/comm/flight_page.h"
#include "lockstep/comm/launch_group.h"
#include "lockstep/comm/nccl.h"

namespace lockstep::comm {

/// A CUDA event. Owned by a collective's Work and by the watcher together.
class CudaEvent {
 public:
  explicit CudaEvent(const CudaApi& cuda);
  ~CudaEvent() { cuda_.event_destroy(handle_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void* handle() const noexcept { return handle_; }

 private:
  const CudaApi& cuda_;
  void* handle_ = nullptr;
};

/// One rank's collectives through NCCL, and the thread that watches over them.
///
/// Two threads use it: the rank's own, which queues, and the watcher, which follows in the flight recorders (its own
/// and the other ranks') what was begun and what is finished. `mutex_` guards `flights_`, `labels_` and `failure_`; a
/// failure is set once and never taken back.
class NcclEngine {
 public:
  NcclEngine(Communicator& host, NcclOptions options, const DeviceApi& api);
  ~NcclEngine();
  NcclEngine(const NcclEngine&) = delete;
  NcclEngine& operator=(const NcclEngine&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  struct Operands {
    const void* input = nullptr;
    void* output = nullptr;
  };
  /// Queues `request` (its sequence number is given here) behind the current stream's work. Returns the event that it
  /// is finished.
  std::shared_ptr<CudaEvent> start(Request request, std::string_view label, const Operands& operands);

  bool is_finished(const CudaEvent& event);
  /// Makes the current stream wait.
  void wait(const CudaEvent& event);
  /// Throws the failure, if there is one.
  void check();

 private:
  using Clock = std::chrono::steady_clock;
  /// A collective that is asked for and not yet seen finished.
  struct Flight {
    Request request;
    std::shared_ptr<CudaEvent> done;
    bool is_launched = false;  ///< before that, `done` means nothing
    Clock::time_point since;   ///< queued; or, if later, when the one before it finished
  };
  using Handle = std::unique_ptr<void, int (*)(void*)>;
  struct Peer {
    FlightPage* page = nullptr;
    int pid = 0;
    UniqueFd process;  ///< readable once the rank's process has ended
  };

  /// Null where ranks share no memory.
  FlightPage* own_page() const noexcept { return peers_[static_cast<std::size_t>(rank_)].page; }
  void check_devices_differ(Communicator& host);
  void share_launch_group(Communicator& host);
  void meet(Communicator& host);
  int call_nccl(const Request& request, const Operands& operands) const;
  void must(int cuda_code, std::string_view what) const;
  std::shared_ptr<CudaEvent> take_event();

  void watch();
  void look();
  std::exception_ptr look_at_nccl();
  std::exception_ptr take_finished();
  std::exception_ptr compare_requests();
  std::exception_ptr look_for_lost(const Flight& oldest);
  std::exception_ptr describe_stall(const Flight& oldest);
  std::string describe(const Flight& flight);
  std::string words_for(std::uint32_t label);
  std::string peers_seen(const std::vector<int>& ranks) const;
  void fail(std::exception_ptr failure, FlightPage::State state);

  const DeviceApi api_;
  const NcclOptions options_;
  const int rank_;
  const int size_;
  std::vector<Peer> peers_;  // by rank
  Handle stream_{nullptr, nullptr};
  Handle nccl_{nullptr, nullptr};  // aborted, unless the destructor ends it in order
  std::unique_ptr<CudaEvent> input_ready_;
  std::shared_ptr<LaunchGroup> launch_group_;  // when the ranks are threads
  std::uint64_t sequence_ = 0;
  std::vector<std::shared_ptr<CudaEvent>> events_;  // all that were made; one is free when nobody else holds it

  std::mutex mutex_;
  std::condition_variable wake_watcher_;
  bool stopping_ = false;
  std::deque<Flight> flights_;                   // oldest first
  std::map<std::uint32_t, std::string> labels_;  // all that were used, by their hash
  std::exception_ptr failure_;
  std::atomic<bool> has_failed_{false};
  std::uint64_t compared_ = 0;  // the watcher's: requests up to here were the same on all ranks
  std::thread watcher_;
};

}  // namespace lockstep::comm
