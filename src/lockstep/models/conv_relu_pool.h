#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::models {

/// adaptive_avg_pool2d(relu(conv2d(x, weight, bias)), 1) flattened: x [N,C,H,W], weight [F,C,3,3], bias [F] -> [N,F].
///
/// float and double on the CPU take the fused kernel (kernels/conv_relu_pool.h): images are spread over at's threads in
/// blocks of fixed size, so gradients do not depend on the number of threads. Anything else (CUDA, half types,
/// autocast, an empty batch, another kernel size) takes ATen's operations. Differentiable once: a backward with
/// create_graph throws ConfigError.
at::Tensor conv_relu_pool(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// The same by ATen's operations.
at::Tensor conv_relu_pool_unfused(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace lockstep::models
