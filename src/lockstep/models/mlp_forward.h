#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::models {

/// linear(relu(linear(x, weight1, bias1)), weight2, bias2) as one node of the autograd graph: five matrix products and
/// no more. x [N,I], weight1 [H,I], bias1 [H], weight2 [O,H], bias2 [O] -> [N,O].
///
/// float and double on the CPU; anything else takes ATen's operations. Differentiable once.
at::Tensor mlp_forward(const at::Tensor& x, const at::Tensor& weight1, const at::Tensor& bias1,
                       const at::Tensor& weight2, const at::Tensor& bias2);

}  // namespace lockstep::models
