#include "lockstep/kernels/conv_relu_pool_simd.h"

namespace lockstep::kernels::detail {

template <typename T>
SimdKernels<T> baseline_kernels() noexcept {
  return {&ConvReluPool<T>::forward, &ConvReluPool<T>::backward};
}
template SimdKernels<float> baseline_kernels<float>() noexcept;
template SimdKernels<double> baseline_kernels<double>() noexcept;

}  // namespace lockstep::kernels::detail
