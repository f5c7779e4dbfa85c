#pragma once

#include <cstdint>
#include <span>

#include "lockstep/kernels/cpu_level.h"

namespace lockstep::kernels {

/// One step of torch.optim.SGD. First g = grad_scale * gradient; the rest is PyTorch's order of operations.
struct SgdStep {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first_step = false;  ///< the momentum buffer starts as a copy of g, whatever the dampening
  double grad_scale = 1;    ///< 1 / samples, the clipping factor
};

/// Updates `values` (and `momentum_buffer`, which may be empty when momentum is 0) in one pass over memory. All spans
/// are equally long and do not overlap; one thread. On a CPU with fused multiply-add the results equal those of
/// PyTorch's CPU operations bit for bit when grad_scale is 1. Throws std::logic_error on unequal lengths.
template <typename T>
void sgd_step(std::span<T> values, std::span<const T> gradients, std::span<T> momentum_buffer, const SgdStep& step,
              CpuLevel level = best_cpu_level());

/// One step of torch.optim.Adam, or of AdamW when `decoupled_weight_decay`.
struct AdamStep {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;
  std::int64_t step = 1;  ///< counts from 1: the exponent of the bias corrections, which are computed in double
  double grad_scale = 1;
};

/// Updates `values`, `exp_avg`, `exp_avg_sq` and, unless empty, `max_exp_avg_sq`, which then takes the second moment's
/// place (amsgrad); conditions and guarantees as for sgd_step, and step >= 1. The averages
/// equal PyTorch's bit for bit; the values differ in the last bit where MKL's square root, which PyTorch uses, is not
/// correctly rounded.
template <typename T>
void adam_step(std::span<T> values, std::span<const T> gradients, std::span<T> exp_avg, std::span<T> exp_avg_sq,
               const AdamStep& step, CpuLevel level = best_cpu_level(), std::span<T> max_exp_avg_sq = {});

/// Sum of the squares, in double, for gradient clipping. The order of the sums depends on the length alone: the result
/// is the same on every CPU. NaN and infinity show in the result.
template <typename T>
double sum_of_squares(std::span<const T> values, CpuLevel level = best_cpu_level());

}  // namespace lockstep::kernels
