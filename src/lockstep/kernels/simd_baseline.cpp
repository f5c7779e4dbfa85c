#include "lockstep/kernels/conv_relu_pool_simd.h"
#include "lockstep/kernels/optimizer_simd.h"

namespace lockstep::kernels::detail {

template <typename T>
SimdKernels<T> baseline_kernels() noexcept {
  return {
      .conv_forward = &ConvReluPool<T>::forward,
      .conv_backward = &ConvReluPool<T>::backward,
      .sgd = &Optimizer<T>::sgd,
      .adam = &Optimizer<T>::adam,
      .sum_of_squares = &Optimizer<T>::sum_of_squares,
  };
}
template SimdKernels<float> baseline_kernels<float>() noexcept;
template SimdKernels<double> baseline_kernels<double>() noexcept;

}  // namespace lockstep::kernels::detail
