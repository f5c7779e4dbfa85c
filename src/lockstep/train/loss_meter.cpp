#include "lockstep/train/loss_meter.h"

#include <torch/torch.h>

namespace lockstep::train {

void LossMeter::add(const at::Tensor& mean_loss, double samples) {
  const auto loss = mean_loss.detach().to(at::kDouble);
  if (!device_sum_.defined()) device_sum_ = at::zeros({}, loss.options());
  device_sum_.add_(loss, samples);
  samples_ += samples;
}

double LossMeter::sum() const {
  return device_sum_.defined() ? sum_ + device_sum_.item<double>() : sum_;
}

void LossMeter::reset(double sum, double samples) {
  sum_ = sum;
  samples_ = samples;
  device_sum_.reset();
}

}  // namespace lockstep::train
