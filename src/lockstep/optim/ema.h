#pragma once

#include <vector>

#include "lockstep/optim/arena.h"

namespace lockstep::optim {

/// Exponential moving average of the weights (Polyak & Juditsky 1992): average = decay * average + (1 - decay) *
/// weights after every update, one pass over flat memory; fp32 for half-precision weights. Every rank that holds all
/// weights gets the same average without any exchange.
class ExponentialMovingAverage {
 public:
  /// Starts from the present weights; the arena is borrowed and must have its final layout (Engine: after the first
  /// update). Throws ConfigError unless 0 <= decay < 1.
  ExponentialMovingAverage(ParameterArena& arena, double decay);

  void update();

  /// Swaps weights and average: to evaluate or save the average, and again to go on training.
  void swap();

  /// The average by parameter name, in the parameters' shapes; views of its own memory.
  std::vector<NamedTensor> tensors() const;

 private:
  ParameterArena& arena_;
  const double decay_;
  std::vector<at::Tensor> averages_;  // by flat buffer
};

}  // namespace lockstep::optim
