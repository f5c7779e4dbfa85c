#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "lockstep/optim/arena.h"
#include "lockstep/parallel/bucket.h"

namespace lockstep::parallel {

// Note [Buckets are sent in index order]
// A collective pairs with the others by order alone, and ranks may finish gradients in different orders (or, for a
// parameter that one rank did not use, never). So a bucket is sent only after all before it, and flush() sends what
// backward left over. An unused parameter counts with the zeros that its gradient starts from.

/// Watches backward: which parameters got a gradient, in which order, and which buckets are thereby complete. It hangs
/// on the gradient accumulators of the arena's parameters, for as long as it lives. Callbacks come from the thread that
/// runs backward.
class GradientReadiness {
 public:
  enum class Mode {
    kAccumulate,  ///< gradients only add up
    kRecord,      ///< and their order and number are taken down, for ready_order()
    kSend,        ///< and complete buckets are handed out
  };

  explicit GradientReadiness(const optim::ParameterArena& arena);
  ~GradientReadiness();
  GradientReadiness(const GradientReadiness&) = delete;
  GradientReadiness& operator=(const GradientReadiness&) = delete;

  /// `on_gradient(s)` for each accumulated gradient of segment s (may be empty); `on_bucket(b)` once bucket b and all
  /// before it are complete. `plan` is that of the arena's present layout and outlives the watching.
  void watch(const BucketPlan& plan, std::function<void(int)> on_gradient, std::function<void(int)> on_bucket);

  void begin_backward(Mode mode);
  /// Hands out the buckets that backward left over.
  void flush();
  void end_step();

  /// Whether some micro-batch of this step gave the parameter with this model index a gradient.
  bool was_used(int index) const { return used_[static_cast<std::size_t>(index)] != 0; }
  bool all_used() const;

  /// Model indices in the order in which the recorded backward finished them; those without a gradient last.
  std::vector<int> ready_order() const;
  /// From now on as many gradients of each parameter are waited for as the last backward brought (a parameter whose use
  /// is split over re-entrant backward passes brings several), but at least `least`.
  void expect_last_counts(int least);
  /// Names of the parameters that brought another number of gradients in the last backward than expected.
  std::vector<std::string> changed_counts() const;

 private:
  void on_accumulated(int index);
  void send_complete_buckets();

  const optim::ParameterArena& arena_;
  const BucketPlan* plan_ = nullptr;
  std::function<void(int)> on_gradient_;
  std::function<void(int)> on_bucket_;
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> hooks_;
  Mode mode_ = Mode::kAccumulate;
  std::vector<char> used_;                 // by model index, in this step
  std::vector<int> arrived_, expected_;    // gradients in this backward, by model index
  std::vector<std::int64_t> finished_at_;  // when the last one arrived, by model index; 0: never
  std::vector<int> place_;                 // model index -> place in the layout
  std::vector<int> pending_;               // segments of each bucket that are not complete
  std::size_t next_bucket_ = 0;
  std::int64_t clock_ = 0;
};

}  // namespace lockstep::parallel
