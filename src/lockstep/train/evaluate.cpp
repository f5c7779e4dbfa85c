#include "lockstep/train/evaluate.h"

#include <array>

#include <torch/torch.h>

namespace lockstep::train {

EvaluationResult evaluate(data::Loader& loader, const std::function<at::Tensor(const at::Tensor&)>& forward,
                          comm::Communicator& communicator) {
  const torch::NoGradGuard no_grad;
  at::Tensor loss_sum, correct;
  double samples = 0;
  for (const auto& batch : loader) {
    const auto logits = forward(batch.input);
    const auto target = batch.target.to(logits.device());
    const auto loss = at::cross_entropy_loss(logits, target, {}, at::Reduction::Sum).to(at::kDouble);
    const auto hits = logits.argmax(1).eq(target).sum();
    loss_sum = loss_sum.defined() ? loss_sum.add_(loss) : loss;
    correct = correct.defined() ? correct.add_(hits) : hits;
    samples += static_cast<double>(batch.size);
  }
  std::array<double, 3> sums{samples > 0 ? loss_sum.item<double>() : 0,
                             samples > 0 ? static_cast<double>(correct.item<std::int64_t>()) : 0, samples};
  communicator.all_reduce({sums.data(), sums.size(), comm::Dtype::kF64}, comm::ReduceOp::kSum).wait();
  EvaluationResult result;
  result.samples = static_cast<std::int64_t>(sums[2]);
  result.correct = static_cast<std::int64_t>(sums[1]);
  if (result.samples > 0) {
    result.loss = sums[0] / sums[2];
    result.accuracy = sums[1] / sums[2];
  }
  return result;
}

}  // namespace lockstep::train
