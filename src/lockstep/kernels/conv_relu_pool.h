#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/kernels/cpu_level.h"

namespace lockstep::kernels {

/// Sizes of conv_relu_pool: a 3x3 convolution (stride 1, no padding), bias, ReLU and the mean over all positions.
struct ConvReluPoolShape {
  std::int64_t images = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;  ///< at least 3
  std::int64_t width = 0;   ///< at least 3
  std::int64_t filters = 0;

  [[gnu::always_inline]] std::int64_t taps() const noexcept { return channels * 9; }
  [[gnu::always_inline]] std::int64_t positions() const noexcept { return (height - 2) * (width - 2); }
  /// Filters rounded up to a multiple of 16, the longest vector.
  [[gnu::always_inline]] std::int64_t padded_filters() const noexcept { return (filters + 15) / 16 * 16; }
  /// Positions are taken in row-major order, four at a time; the last group may be short.
  [[gnu::always_inline]] std::int64_t groups() const noexcept { return (positions() + 3) / 4; }

  /// Bytes of the record of active outputs that forward leaves for backward. Layout [images][groups][padded_filters]:
  /// bit 4 + q of a byte is set when position 4 * group + q passed the ReLU.
  [[gnu::always_inline]] std::size_t active_bytes() const noexcept {
    return static_cast<std::size_t>(images * groups() * padded_filters());
  }
};

/// pooled[n,f] = mean over (y,x) of relu(b[f] + sum over (c,i,j) of w[f,c,i,j] * x[n,c,y+i,x+j]).
///
/// All arrays are contiguous: x [N,C,H,W], w [F,C,3,3], b [F], pooled [N,F]. `active` is null (evaluation) or
/// active_bytes() long. NaN passes the ReLU, as in ATen. One thread, fixed order of sums: results depend on the
/// CpuLevel alone; calls on disjoint outputs may run in parallel. The convolution's output never exists in memory.
/// Throws std::logic_error on a height or width below 3 or a negative size.
template <typename T>
void conv_relu_pool_forward(const ConvReluPoolShape& shape, const T* x, const T* w, const T* b, T* pooled,
                            std::uint8_t* active, CpuLevel level = best_cpu_level());

/// Gradients of the above from dpooled [N,F] and forward's `active`: dw [F,C,3,3], db [F] and, when not null,
/// dx [N,C,H,W]. All are overwritten.
///
/// The gradient of the pool is one number g a map, so dw[f] = sum over n of g[n,f] * S[n,f], where S[n,f] sums the
/// input patches under the active outputs: a product of a bit matrix with the patches. It is computed by the method of
/// four Russians (Arlazarov et al., 1970): the 16 possible sums of four neighbouring patches are tabulated once and
/// looked up by every filter, 2.7 times fewer additions than one for each active output.
template <typename T>
void conv_relu_pool_backward(const ConvReluPoolShape& shape, const T* x, const T* w, const std::uint8_t* active,
                             const T* dpooled, T* dw, T* db, T* dx, CpuLevel level = best_cpu_level());

}  // namespace lockstep::kernels
