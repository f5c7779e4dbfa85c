#pragma once

#include <initializer_list>

#include <ATen/core/Tensor.h>

namespace lockstep::models::detail {

/// Whether a CPU kernel of ours may take these tensors: all float or all double, dense, on the CPU, no autocast.
bool fits_cpu_kernel(std::initializer_list<at::Tensor> tensors);

/// Whether the operation must be recorded for backward.
bool needs_gradient(std::initializer_list<at::Tensor> tensors);

/// Throws ConfigError when a backward of `operation` itself is being differentiated (create_graph): our kernels'
/// gradients have no gradient, and silence would make it zero.
void refuse_double_backward(const char* operation);

}  // namespace lockstep::models::detail
