#include "lockstep/train/evaluate.h"

#include <numeric>
#include <vector>

#include <torch/torch.h>

namespace lockstep::train {

EvaluationResult evaluate(data::Loader& loader, const std::function<at::Tensor(const at::Tensor&)>& forward,
                          comm::Communicator& communicator) {
  const torch::NoGradGuard no_grad;
  const auto ranks = loader.options().num_replicas, rank = loader.options().rank;
  const auto num_batches = (loader.dataset().size() - 1) / loader.options().batch_size + 1;
  std::vector<at::Tensor> losses;  // of each batch; read at the end, so that a GPU is not waited for at every batch
  at::Tensor correct;
  double samples = 0;
  for (const auto& batch : loader) {
    const auto logits = forward(batch.input);
    const auto target = batch.target.to(logits.device());
    losses.push_back(at::cross_entropy_loss(logits.to(at::kDouble), target, {}, at::Reduction::Sum));
    const auto hits = logits.argmax(1).eq(target).sum();
    correct = correct.defined() ? correct.add_(hits) : hits;
    samples += static_cast<double>(batch.size);
  }
  // The loss of each batch in a place of its own, 0 in those of other ranks: adding ranks up rounds nothing.
  std::vector<double> sums(static_cast<std::size_t>(num_batches) + 2);
  double* const batch_losses = sums.data() + 2;
  if (!losses.empty()) {
    const auto mine = at::stack(losses).cpu();
    for (std::int64_t i = 0; i < mine.numel(); ++i) batch_losses[i * ranks + rank] = mine.const_data_ptr<double>()[i];
    sums[0] = static_cast<double>(correct.item<std::int64_t>());
    sums[1] = samples;
  }
  communicator.all_reduce({sums.data(), sums.size(), comm::Dtype::kF64}, comm::ReduceOp::kSum).wait();
  EvaluationResult result;
  result.correct = static_cast<std::int64_t>(sums[0]);
  result.samples = static_cast<std::int64_t>(sums[1]);
  if (result.samples > 0) {
    result.loss = std::accumulate(batch_losses, batch_losses + num_batches, 0.0) / sums[1];
    result.accuracy = sums[0] / sums[1];
  }
  return result;
}

}  // namespace lockstep::train
