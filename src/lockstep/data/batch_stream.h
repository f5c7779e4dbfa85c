#pragma once

#include <torch/types.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace lockstep::data {

/// Inputs and labels of one step.
struct Batch {
  at::Tensor input;        ///< [n, C, H, W], normalised, contiguous
  at::Tensor target;       ///< int64 [n]
  std::int64_t size = 0;   ///< n
  std::int64_t index = 0;  ///< which batch of the epoch, from 0
  bool last = false;       ///< of the epoch
};

/// The batches of one epoch in order, made ahead by threads that take whole batches, or by the caller when there are
/// none. One consumer at a time. Destroying it at any moment stops and joins the threads.
class BatchStream {
 public:
  using MakeBatch = std::function<Batch(std::int64_t index)>;

  /// Batches first_batch .. num_batches - 1. `make` is called from `num_threads` threads at once, at most `ahead`
  /// batches before the consumer.
  BatchStream(MakeBatch make, std::int64_t first_batch, std::int64_t num_batches, int num_threads, int ahead);
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;
  ~BatchStream();

  /// nullopt at the end. What `make` threw for a batch is thrown here when its turn comes, after the batches before it;
  /// the stream is at its end then.
  std::optional<Batch> next();

 private:
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
    bool ready() const { return batch.has_value() || error != nullptr; }
  };

  void work();
  Slot& slot(std::int64_t index) { return slots_[static_cast<std::size_t>(index) % slots_.size()]; }
  void stop_and_join();

  MakeBatch make_;
  const std::int64_t num_batches_;

  std::mutex mutex_;
  std::condition_variable room_;   // for the threads: the consumer took one, or stop
  std::condition_variable ready_;  // for the consumer: a slot was filled
  std::vector<Slot> slots_;
  std::int64_t next_to_take_;  // guarded by mutex_
  std::int64_t next_to_give_;  // guarded by mutex_ where there are threads
  bool stop_ = false;          // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data
