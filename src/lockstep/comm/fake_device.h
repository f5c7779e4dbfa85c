#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/device_api.h"

namespace lockstep::comm::testing {

/// GPUs and NCCL as far as NcclEngine uses them, in host memory: a stream is a thread, a collective of threads of this
/// process waits on its stream for the others, as a kernel of NCCL does, until it is aborted. Only f32 and f64 sums.
class FakeDevice {
 public:
  class Stream {
   public:
    Stream() : thread_([this] { run(); }) {}
    ~Stream() {
      put(nullptr);
      thread_.join();
    }
    void put(std::function<void()> task) {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
      changed_.notify_all();
    }
    /// Like cudaStreamSynchronize().
    void synchronize() {
      std::atomic<bool> done{false};
      put([&] {
        done = true;
        done.notify_all();
      });
      done.wait(false);
    }

   private:
    void run() {
      for (;;) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !tasks_.empty(); });
        auto task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        if (!task) return;
        task();
      }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    std::thread thread_;
  };

  static DeviceApi api();

  /// Makes every start-up of NCCL hang until release_start_up().
  static void hang_start_up() { state().start_up_hangs = true; }
  static void release_start_up() {
    state().start_up_hangs = false;
    state().start_up_hangs.notify_all();
  }
  /// What ncclCommGetAsyncError reports from now on.
  static void set_async_error(int code) { state().async_error = code; }
  /// Start-up does not wait for the other ranks, and collectives never end: for ranks that are processes.
  static void be_alone() { state().alone = true; }
  /// Bus ids of the devices: by default all differ.
  static void put_all_on_one_bus(bool all) { state().one_bus = all; }

 private:
  struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t recorded = 0, done = 0;
  };
  /// The ranks that were started with one id.
  struct Group {
    std::mutex mutex;
    std::condition_variable changed;
    int size = 0, arrived = 0;
    struct Collective {
      std::map<int, const void*> inputs;
      int finished = 0;
    };
    std::map<std::uint64_t, Collective> collectives;
  };
  struct Rank {
    std::shared_ptr<Group> group;
    int rank = 0;
    std::uint64_t sequence = 0;
    std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  };
  struct State {
    std::atomic<bool> start_up_hangs{false};
    std::atomic<int> async_error{0};
    std::atomic<bool> one_bus{false};
    std::atomic<bool> alone{false};
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<Group>> groups;
    std::vector<std::unique_ptr<Rank>> ranks;  // all that were made: an aborted one may still be in a call
    int num_ids = 0;
  };
  static State& state() {
    static State& state = *new State;  // never destroyed: a hung start-up may still be in it
    return state;
  }

  using Compute = std::function<void(const std::map<int, const void*>& inputs)>;
  /// Runs `compute` once all ranks have brought their inputs; returns once all have computed.
  static int collective(void* communicator, void* stream, const void* input, Compute compute, Compute publish);
  static CudaApi cuda();
  static NcclApi nccl();
};

inline int FakeDevice::collective(void* communicator, void* stream, const void* input, Compute compute,
                                  Compute publish) {
  auto& rank = *static_cast<Rank*>(communicator);
  const auto sequence = ++rank.sequence;
  static_cast<Stream*>(stream)->put([=, group = rank.group, aborted = rank.aborted, self = rank.rank] {
    std::unique_lock lock(group->mutex);
    auto& mine = group->collectives[sequence];
    mine.inputs[self] = input;
    group->changed.notify_all();
    group->changed.wait(lock, [&] { return *aborted || static_cast<int>(mine.inputs.size()) == group->size; });
    if (*aborted) return;
    compute(mine.inputs);
    ++mine.finished;
    group->changed.notify_all();
    group->changed.wait(lock, [&] { return *aborted || mine.finished >= group->size; });
    if (!*aborted) publish(mine.inputs);
  });
  return 0;
}

inline CudaApi FakeDevice::cuda() {
  CudaApi api;
  api.set_device = [](int) { return 0; };
  api.device_pci_bus_id = [](char* text, int, int device) {
    std::strcpy(text, state().one_bus ? "0000:01:00.0" : ("0000:0" + std::to_string(device) + ":00.0").c_str());
    return 0;
  };
  api.stream_priority_range = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
  };
  api.stream_create = [](void** stream, unsigned, int) {
    *stream = new Stream;
    return 0;
  };
  api.stream_destroy = [](void* stream) {
    delete static_cast<Stream*>(stream);
    return 0;
  };
  api.event_create = [](void** event, unsigned) {
    *event = new std::shared_ptr<Event>(std::make_shared<Event>());
    return 0;
  };
  api.event_destroy = [](void* event) {
    delete static_cast<std::shared_ptr<Event>*>(event);
    return 0;
  };
  api.event_record = [](void* handle, void* stream) {
    const auto event = *static_cast<std::shared_ptr<Event>*>(handle);
    const std::lock_guard lock(event->mutex);
    static_cast<Stream*>(stream)->put([event, ticket = ++event->recorded] {
      const std::lock_guard inner(event->mutex);
      event->done = ticket;
      event->changed.notify_all();
    });
    return 0;
  };
  api.stream_wait_event = [](void* stream, void* handle, unsigned) {
    const auto event = *static_cast<std::shared_ptr<Event>*>(handle);
    const std::lock_guard lock(event->mutex);
    static_cast<Stream*>(stream)->put([event, ticket = event->recorded] {
      std::unique_lock inner(event->mutex);
      event->changed.wait(inner, [&] { return event->done >= ticket; });
    });
    return 0;
  };
  api.event_query = [](void* handle) {
    const auto event = *static_cast<std::shared_ptr<Event>*>(handle);
    const std::lock_guard lock(event->mutex);
    return event->done >= event->recorded ? 0 : CudaApi::kNotReady;
  };
  api.error_text = [](int) { return "a CUDA error"; };
  return api;
}

inline NcclApi FakeDevice::nccl() {
  static constexpr auto kBytes = [](std::size_t count, int type) { return count * (type == 8 ? 8 : 4); };
  static constexpr auto kSum = [](void* output, const std::map<int, const void*>& inputs, std::size_t first,
                                  std::size_t count, int type) {
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (const auto& [rank, input] : inputs) {
        sum += type == 8 ? static_cast<const double*>(input)[first + i]
                         : static_cast<double>(static_cast<const float*>(input)[first + i]);
      }
      if (type == 8) {
        static_cast<double*>(output)[i] = sum;
      } else {
        static_cast<float*>(output)[i] = static_cast<float>(sum);
      }
    }
  };
  NcclApi api;
  api.unique_id = [](NcclId* id) {
    const std::lock_guard lock(state().mutex);
    std::strcpy(id->bytes, std::to_string(++state().num_ids).c_str());
    return 0;
  };
  api.group_start = [] { return 0; };
  api.group_end = [] { return 0; };
  api.init_rank = [](void** communicator, int size, NcclId id, int rank) {
    state().start_up_hangs.wait(true);
    std::unique_lock lock(state().mutex);
    auto& entry = state().groups[id.bytes];
    if (!entry) entry = std::make_shared<Group>();
    const auto group = entry;
    lock.unlock();
    std::unique_lock inside(group->mutex);
    group->size = size;
    ++group->arrived;
    group->changed.notify_all();
    group->changed.wait(inside, [&] { return state().alone || group->arrived == size; });
    inside.unlock();
    lock.lock();
    *communicator = state().ranks.emplace_back(new Rank{.group = group, .rank = rank}).get();
    return 0;
  };
  api.destroy = [](void*) { return 0; };
  // As NCCL's own: it frees this rank's kernels only.
  api.abort = [](void* communicator) {
    auto& rank = *static_cast<Rank*>(communicator);
    const std::lock_guard lock(rank.group->mutex);
    *rank.aborted = true;
    rank.group->changed.notify_all();
    return 0;
  };
  api.async_error = [](void*, int* code) {
    *code = state().async_error;
    return 0;
  };
  api.error_text = [](int) { return "an NCCL error"; };
  api.last_error = [](void*) { return ""; };
  api.all_reduce = [](const void* input, void* output, std::size_t count, int type, int, void* rank, void* stream) {
    auto sums = std::make_shared<std::vector<char>>(kBytes(count, type));
    return collective(
        rank, stream, input, [=](const auto& inputs) { kSum(sums->data(), inputs, 0, count, type); },
        [=](const auto&) { std::memcpy(output, sums->data(), sums->size()); });
  };
  api.reduce_scatter = [](const void* input, void* output, std::size_t count, int type, int, void* rank, void* stream) {
    auto sums = std::make_shared<std::vector<char>>(kBytes(count, type));
    const auto first = count * static_cast<std::size_t>(static_cast<Rank*>(rank)->rank);
    return collective(
        rank, stream, input, [=](const auto& inputs) { kSum(sums->data(), inputs, first, count, type); },
        [=](const auto&) { std::memcpy(output, sums->data(), sums->size()); });
  };
  api.all_gather = [](const void* input, void* output, std::size_t count, int type, void* rank, void* stream) {
    auto all = std::make_shared<std::vector<char>>();
    return collective(
        rank, stream, input,
        [=](const auto& inputs) {
          for (const auto& [r, part] : inputs) {
            const auto* bytes = static_cast<const char*>(part);
            all->insert(all->end(), bytes, bytes + kBytes(count, type));
          }
        },
        [=](const auto&) { std::memcpy(output, all->data(), all->size()); });
  };
  api.broadcast = [](const void* input, void* output, std::size_t count, int type, int root, void* rank, void* stream) {
    auto value = std::make_shared<std::vector<char>>(kBytes(count, type));
    return collective(
        rank, stream, input, [=](const auto& inputs) { std::memcpy(value->data(), inputs.at(root), value->size()); },
        [=](const auto&) { std::memcpy(output, value->data(), value->size()); });
  };
  return api;
}

inline DeviceApi FakeDevice::api() {
  return {cuda(), nccl()};
}

}  // namespace lockstep::comm::testing
