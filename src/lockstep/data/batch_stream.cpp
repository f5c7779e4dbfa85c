#include "lockstep/data/batch_stream.h"

#include <algorithm>

namespace lockstep::data {

BatchStream::BatchStream(MakeBatch make, std::int64_t first_batch, std::int64_t num_batches, int num_threads, int ahead)
    : make_(std::move(make)), num_batches_(num_batches), next_to_take_(first_batch), next_to_give_(first_batch) {
  const std::int64_t left = std::max<std::int64_t>(0, num_batches - first_batch);
  const auto useful = static_cast<int>(std::min<std::int64_t>(num_threads, left));
  if (useful == 0) return;
  slots_.resize(static_cast<std::size_t>(std::min<std::int64_t>(std::max(ahead, 1), left)));
  threads_.reserve(static_cast<std::size_t>(useful));
  try {
    for (int i = 0; i < useful; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {
    stop_and_join();  // a thread could not start; those that did must not outlive this object
    throw;
  }
}

BatchStream::~BatchStream() {
  stop_and_join();
}

void BatchStream::stop_and_join() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  room_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void BatchStream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto depth = static_cast<std::int64_t>(slots_.size());
    room_.wait(lock, [&] { return stop_ || next_to_take_ >= num_batches_ || next_to_take_ < next_to_give_ + depth; });
    if (stop_ || next_to_take_ >= num_batches_) return;
    const std::int64_t index = next_to_take_++;
    lock.unlock();
    Slot made;
    try {
      made.batch = make_(index);
    } catch (...) {
      made.error = std::current_exception();
    }
    lock.lock();
    slot(index) = std::move(made);
    if (index == next_to_give_) ready_.notify_one();
  }
}

std::optional<Batch> BatchStream::next() {
  if (next_to_give_ >= num_batches_) return std::nullopt;
  if (threads_.empty()) {
    const std::int64_t index = next_to_give_;
    next_to_give_ = num_batches_;  // stays so when make_ throws
    Batch batch = make_(index);
    batch.last = index + 1 == num_batches_;
    next_to_give_ = index + 1;
    return batch;
  }
  Slot taken;
  {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return slot(next_to_give_).ready(); });
    taken = std::exchange(slot(next_to_give_), Slot{});
    next_to_give_ = taken.error ? num_batches_ : next_to_give_ + 1;
    stop_ = stop_ || taken.error != nullptr;
  }
  if (taken.error) {
    room_.notify_all();
    std::rethrow_exception(taken.error);
  }
  room_.notify_one();
  taken.batch->last = taken.batch->index + 1 == num_batches_;
  return std::move(taken.batch);
}

}  // namespace lockstep::data
