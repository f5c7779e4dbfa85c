#include "lockstep/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace lockstep::kernels {

template <typename T>
CrossEntropyResult cross_entropy(std::int64_t samples, std::int64_t classes, const T* logits,
                                 const std::int64_t* targets, double gradient_scale, T* dlogits) {
  const auto bad = std::find_if(targets, targets + samples, [&](auto t) { return t < 0 || t >= classes; });
  if (bad != targets + samples) return {.loss_sum = 0, .bad_sample = bad - targets};

  double loss_sum = 0;
  for (std::int64_t n = 0; n < samples; ++n, logits += classes) {
    // Shifted by the largest logit, exp cannot overflow. A NaN is skipped here but shows in the sum.
    const T largest = *std::max_element(logits, logits + classes);
    double sum = 0;
    for (std::int64_t k = 0; k < classes; ++k) {
      const T e = std::exp(logits[k] - largest);
      sum += static_cast<double>(e);
      if (dlogits != nullptr) dlogits[k] = e;
    }
    const std::int64_t target = targets[n];
    loss_sum += std::log(sum) - (static_cast<double>(logits[target]) - static_cast<double>(largest));
    if (dlogits == nullptr) continue;
    const double factor = gradient_scale / sum;
    for (std::int64_t k = 0; k < classes; ++k) {
      const double one_hot = k == target ? gradient_scale : 0.0;
      dlogits[k] = static_cast<T>(static_cast<double>(dlogits[k]) * factor - one_hot);
    }
    dlogits += classes;
  }
  return {.loss_sum = loss_sum, .bad_sample = -1};
}

template CrossEntropyResult cross_entropy(std::int64_t, std::int64_t, const float*, const std::int64_t*, double,
                                          float*);
template CrossEntropyResult cross_entropy(std::int64_t, std::int64_t, const double*, const std::int64_t*, double,
                                          double*);

}  // namespace lockstep::kernels
