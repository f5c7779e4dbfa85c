#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::train {

/// Mean loss over many steps. On CUDA the sum stays on the device until mean() is asked for.
class LossMeter {
 public:
  void add(double loss_sum, double samples) {
    sum_ += loss_sum;
    samples_ += samples;
  }
  void add(const at::Tensor& mean_loss, double samples);

  double samples() const noexcept { return samples_; }
  /// Sum of losses; waits for the device when some were added there.
  double sum() const;
  double mean() const { return samples_ > 0 ? sum() / samples_ : 0; }
  void reset(double sum = 0, double samples = 0);

 private:
  double sum_ = 0;
  double samples_ = 0;
  at::Tensor device_sum_;
};

}  // namespace lockstep::train
