#if defined(__x86_64__)

#include "lockstep/kernels/conv_relu_pool_simd.h"

namespace lockstep::kernels::detail {

template <typename T>
SimdKernels<T> avx512_kernels() noexcept {
  return {&ConvReluPool<T>::forward, &ConvReluPool<T>::backward};
}
template SimdKernels<float> avx512_kernels<float>() noexcept;
template SimdKernels<double> avx512_kernels<double>() noexcept;

}  // namespace lockstep::kernels::detail

#endif
