#include "lockstep/models/mlp_forward.h"

#include <torch/torch.h>

#include "lockstep/models/fused.h"

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class TwoLayers : public torch::autograd::Function<TwoLayers> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight1,
                            const at::Tensor& bias1, const at::Tensor& weight2, const at::Tensor& bias2) {
    const at::Tensor hidden = at::addmm(bias1, x, weight1.t()).relu_();
    context->save_for_backward({x, hidden, weight1, weight2});
    return at::addmm(bias2, hidden, weight2.t());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    detail::refuse_double_backward("mlp_forward");
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &hidden = saved[1], &weight1 = saved[2], &weight2 = saved[3];
    const at::Tensor& dy = gradients[0];
    const at::Tensor dhidden = at::threshold_backward(at::mm(dy, weight2), hidden, 0);
    return {context->needs_input_grad(0) ? at::mm(dhidden, weight1) : at::Tensor(), at::mm(dhidden.t(), x),
            at::sum(dhidden, 0), at::mm(dy.t(), hidden), at::sum(dy, 0)};
  }
};

}  // namespace

at::Tensor mlp_forward(const at::Tensor& x, const at::Tensor& weight1, const at::Tensor& bias1,
                       const at::Tensor& weight2, const at::Tensor& bias2) {
  if (!detail::fits_cpu_kernel({x, weight1, bias1, weight2, bias2}) || x.dim() != 2 ||
      !detail::needs_gradient({x, weight1, bias1, weight2, bias2})) {
    return at::linear(at::relu(at::linear(x, weight1, bias1)), weight2, bias2);
  }
  return TwoLayers::apply(x, weight1, bias1, weight2, bias2);
}

}  // namespace lockstep::models
