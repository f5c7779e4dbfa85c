#include "lockstep/models/loss.h"

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/models/fused.h"

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The mean loss; `dlogits` (may be undefined) becomes the gradient of the sum of the losses.
at::Tensor forward_kernel(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& dlogits) {
  const std::int64_t samples = logits.size(0), classes = logits.size(1);
  kernels::CrossEntropyResult result;
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "cross_entropy", [&] {
    result = kernels::cross_entropy<scalar_t>(samples, classes, logits.const_data_ptr<scalar_t>(),
                                              target.const_data_ptr<std::int64_t>(), 1.0,
                                              dlogits.defined() ? dlogits.data_ptr<scalar_t>() : nullptr);
  });
  if (result.bad_sample >= 0) {
    throw DataError(text("sample ", result.bad_sample, " of the batch has target ",
                         target.const_data_ptr<std::int64_t>()[result.bad_sample], "; expected 0 to ", classes - 1));
  }
  at::Tensor loss = at::empty({}, logits.options());
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "cross_entropy", [&] {
    *loss.data_ptr<scalar_t>() = static_cast<scalar_t>(result.loss_sum / static_cast<double>(samples));
  });
  return loss;
}

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& target) {
    at::Tensor dlogits = at::empty_like(logits);
    at::Tensor loss = forward_kernel(logits, target, dlogits);
    context->save_for_backward({dlogits});
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    detail::refuse_double_backward("cross_entropy");
    const at::Tensor dlogits = context->get_saved_variables()[0];
    const double factor = gradients[0].item<double>() / static_cast<double>(dlogits.size(0));
    return {factor == 1.0 ? dlogits : at::mul(dlogits, factor), at::Tensor()};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) {
  if (logits.dim() > 2) {
    if (target.sizes() != logits.sizes().slice(0, logits.sizes().size() - 1)) {
      throw ConfigError(text("cross_entropy: logits of ", logits.dim(), " dimensions need targets of their shape but ",
                             "for the last dimension, which is the classes"));
    }
    return cross_entropy(logits.flatten(0, -2), target.flatten());
  }
  const bool fits = detail::fits_cpu_kernel({logits}) && logits.dim() == 2 && target.device().is_cpu() &&
                    target.scalar_type() == at::kLong && target.dim() == 1 && target.size(0) == logits.size(0) &&
                    logits.numel() > 0;
  if (!fits) return at::cross_entropy_loss(logits, target, {}, at::Reduction::Mean, /*ignore_index=*/-100);
  if (!detail::needs_gradient({logits})) return forward_kernel(logits.contiguous(), target.contiguous(), {});
  return CrossEntropy::apply(logits.contiguous(), target.contiguous());
}

}  // namespace lockstep::models
