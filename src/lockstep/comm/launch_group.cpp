#include "lockstep/comm/launch_group.h"

#include <chrono>

namespace lockstep::comm {

std::optional<int> LaunchGroup::launch(std::function<int()> call, const std::function<bool()>& is_over) {
  constexpr auto kLook = std::chrono::milliseconds(5);
  std::unique_lock lock(mutex_);
  calls_.push_back(std::move(call));
  if (calls_.size() == size_ && !is_broken_) {
    int code = nccl_.group_start();
    for (const auto& each : calls_) {
      if (const int of_call = each(); code == 0) code = of_call;
    }
    if (const int end = nccl_.group_end(); code == 0) code = end;
    calls_.clear();
    code_ = code;
    ++generation_;
    launched_.notify_all();
    return code;
  }
  // The generation cannot end a second time before this thread has looked: it needs this rank's next call.
  const std::size_t mine = generation_;
  while (generation_ == mine) {
    if (is_broken_ || is_over()) {
      is_broken_ = true;
      launched_.notify_all();
      return std::nullopt;
    }
    launched_.wait_for(lock, kLook);
  }
  return code_;
}

}  // namespace lockstep::comm
