#include "lockstep/optim/ema.h"

#include <ATen/OpMathType.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::optim {

ExponentialMovingAverage::ExponentialMovingAverage(ParameterArena& arena, double decay) : arena_(arena), decay_(decay) {
  if (!(decay >= 0 && decay < 1)) throw ConfigError(text("EMA decay is ", decay, ": expected 0 to below 1"));
  for (const auto& buffer : arena.buffers()) {
    averages_.push_back(buffer.values.to(at::toOpMathType(buffer.values.scalar_type()), false, /*copy=*/true));
  }
}

void ExponentialMovingAverage::update() {
  at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < averages_.size(); ++b) {
    averages_[b].lerp_(arena_.buffers()[b].values.to(averages_[b].scalar_type()), 1 - decay_);
  }
}

void ExponentialMovingAverage::swap() {
  at::NoGradGuard no_grad;
  for (std::size_t b = 0; b < averages_.size(); ++b) {
    const auto& values = arena_.buffers()[b].values;
    const auto kept = values.to(averages_[b].scalar_type(), false, /*copy=*/true);
    values.copy_(averages_[b]);
    averages_[b].copy_(kept);
  }
}

std::vector<NamedTensor> ExponentialMovingAverage::tensors() const {
  std::vector<NamedTensor> tensors;
  for (const auto& segment : arena_.segments()) {
    tensors.push_back({segment.name, arena_.view(averages_[static_cast<std::size_t>(segment.buffer)], segment)});
  }
  return tensors;
}

}  // namespace lockstep::optim
