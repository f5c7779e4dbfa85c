#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::models {

/// Mean cross entropy of logits [N, classes] against class indices, int64 [N]: a scalar of the logits' type. Also of
/// logits [N, T, vocabulary] against tokens [N, T], as the mean over all tokens; the classes come last, not second as
/// in torch's own.
///
/// float and double on the CPU take the fused kernel (kernels/cross_entropy.h), which also leaves the gradient ready:
/// a backward that starts from N (sum instead of mean) hands it on untouched. Anything else takes ATen's operation.
/// No class is ignored: on the CPU a target outside [0, classes) throws DataError with its place and value.
/// Differentiable once.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target);

}  // namespace lockstep::models
