#pragma once

#include <cstdint>

namespace lockstep::kernels {

struct CrossEntropyResult {
  double loss_sum = 0;           ///< sum over the samples of -log softmax(logits)[target]
  std::int64_t bad_sample = -1;  ///< first sample whose target is not in [0, classes): nothing was computed then
};

/// Softmax cross entropy of logits [samples, classes] against class indices, and its gradient in the same pass:
/// dlogits = gradient_scale * (softmax(logits) - one_hot(target)); null when only the loss is wanted.
/// gradient_scale is 1 for the sum of the losses, 1 / samples for their mean. One thread, fixed order of sums.
template <typename T>
CrossEntropyResult cross_entropy(std::int64_t samples, std::int64_t classes, const T* logits,
                                 const std::int64_t* targets, double gradient_scale, T* dlogits);

}  // namespace lockstep::kernels
