#pragma once

#include <cstdint>

#include "lockstep/kernels/conv_relu_pool.h"
#include "lockstep/kernels/optimizer.h"

namespace lockstep::kernels::detail {

/// Scratch of conv_relu_pool in elements; all regions start at multiples of 64 bytes.
struct ConvReluPoolScratch {
  std::int64_t padded_taps;  ///< taps and one column of ones, in whole table entries of 128 bytes
  std::int64_t forward_elements;
  std::int64_t backward_elements;
};
inline constexpr std::int64_t kTileGroups = 8;     ///< groups of four positions whose tables are in L1 together
inline constexpr std::int64_t kEntryBytes = 128;   ///< one table entry; a stored index times 8
inline constexpr std::int64_t kTableEntries = 16;  ///< sums over the subsets of four positions
ConvReluPoolScratch conv_relu_pool_scratch(const ConvReluPoolShape& shape, std::int64_t element_bytes) noexcept;

/// The kernels of one instruction set for one element type. Scratch is 64-byte aligned and zeroed.
template <typename T>
struct SimdKernels {
  void (*conv_forward)(const ConvReluPoolShape&, const T* x, const T* w, const T* b, T* pooled, std::uint8_t* active,
                       T* scratch);
  void (*conv_backward)(const ConvReluPoolShape&, const ConvReluPoolScratch&, const T* x, const T* w,
                        const std::uint8_t* active, const T* dpooled, T* dw, T* db, T* dx, T* scratch);
  void (*sgd)(std::int64_t size, T* values, const T* gradients, T* momentum_buffer, const SgdStep&);
  void (*adam)(std::int64_t size, T* values, const T* gradients, T* exp_avg, T* exp_avg_sq, T* max_exp_avg_sq,
               const AdamStep&, double bias_correction1, double sqrt_bias_correction2);
  double (*sum_of_squares)(std::int64_t size, const T* values);
};

template <typename T>
SimdKernels<T> baseline_kernels() noexcept;
template <typename T>
SimdKernels<T> avx2_kernels() noexcept;
template <typename T>
SimdKernels<T> avx512_kernels() noexcept;

/// The table for `level`, lowered to what this CPU can run.
template <typename T>
SimdKernels<T> simd_kernels(CpuLevel level) noexcept {
  const CpuLevel best = best_cpu_level();
  const CpuLevel usable = level < best ? level : best;
#if defined(__x86_64__)
  if (usable == CpuLevel::kAvx512) return avx512_kernels<T>();
  if (usable == CpuLevel::kAvx2) return avx2_kernels<T>();
#endif
  return baseline_kernels<T>();
}

}  // namespace lockstep::kernels::detail
