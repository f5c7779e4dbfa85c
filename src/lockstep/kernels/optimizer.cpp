#include "lockstep/kernels/optimizer.h"

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/kernels/simd_entry.h"

namespace lockstep::kernels {

template <typename T>
void sgd_step(std::span<T> values, std::span<const T> gradients, std::span<T> momentum_buffer, const SgdStep& step,
              CpuLevel level) {
  LOCKSTEP_CHECK(gradients.size() == values.size());
  LOCKSTEP_CHECK(step.momentum == 0 || momentum_buffer.size() == values.size());
  detail::simd_kernels<T>(level).sgd(static_cast<std::int64_t>(values.size()), values.data(), gradients.data(),
                                     momentum_buffer.data(), step);
}

template <typename T>
void adam_step(std::span<T> values, std::span<const T> gradients, std::span<T> exp_avg, std::span<T> exp_avg_sq,
               const AdamStep& step, CpuLevel level, std::span<T> max_exp_avg_sq) {
  LOCKSTEP_CHECK(gradients.size() == values.size() && exp_avg.size() == values.size());
  LOCKSTEP_CHECK(exp_avg_sq.size() == values.size() && step.step >= 1);
  LOCKSTEP_CHECK(max_exp_avg_sq.empty() || max_exp_avg_sq.size() == values.size());
  const auto exponent = static_cast<double>(step.step);
  detail::simd_kernels<T>(level).adam(
      static_cast<std::int64_t>(values.size()), values.data(), gradients.data(), exp_avg.data(), exp_avg_sq.data(),
      max_exp_avg_sq.data(), step, 1 - std::pow(step.beta1, exponent), std::sqrt(1 - std::pow(step.beta2, exponent)));
}

template <typename T>
double sum_of_squares(std::span<const T> values, CpuLevel level) {
  return detail::simd_kernels<T>(level).sum_of_squares(static_cast<std::int64_t>(values.size()), values.data());
}

template void sgd_step(std::span<float>, std::span<const float>, std::span<float>, const SgdStep&, CpuLevel);
template void sgd_step(std::span<double>, std::span<const double>, std::span<double>, const SgdStep&, CpuLevel);
template void adam_step(std::span<float>, std::span<const float>, std::span<float>, std::span<float>, const AdamStep&,
                        CpuLevel, std::span<float>);
template void adam_step(std::span<double>, std::span<const double>, std::span<double>, std::span<double>,
                        const AdamStep&, CpuLevel, std::span<double>);
template double sum_of_squares(std::span<const float>, CpuLevel);
template double sum_of_squares(std::span<const double>, CpuLevel);

}  // namespace lockstep::kernels
