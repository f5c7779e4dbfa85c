#pragma once

#include <cmath>

#include <ATen/core/Tensor.h>

namespace lockstep::train {

/// Mean loss over many steps. On CUDA the sum stays on the device until mean() is asked for.
class LossMeter {
 public:
  /// A sum that is not finite is left out with its samples: the trainer judges those, and one of them would spoil the
  /// mean of all steps after it.
  void add(double loss_sum, double samples) {
    if (!std::isfinite(loss_sum)) return;
    sum_ += loss_sum;
    samples_ += samples;
  }
  void add(const at::Tensor& mean_loss, double samples);

  double samples() const noexcept { return samples_; }
  /// Sum of losses; waits for the device when some were added there.
  double sum() const;
  /// NaN when nothing was added.
  double mean() const { return sum() / samples_; }
  void reset(double sum = 0, double samples = 0);

 private:
  double sum_ = 0;
  double samples_ = 0;
  at::Tensor device_sum_;
};

}  // namespace lockstep::train
