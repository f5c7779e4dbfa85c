#include "lockstep/parallel/sync_batch_norm.h"

#include <gtest/gtest.h>

#include <thread>

#include <torch/torch.h>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

struct Result {
  at::Tensor output, input_gradient, weight_gradient, bias_gradient, running_mean, running_variance;
};

torch::nn::BatchNorm2d make_layer(at::ScalarType type) {
  torch::nn::BatchNorm2d layer(torch::nn::BatchNorm2dOptions(3).momentum(0.3));
  layer->to(type);
  torch::NoGradGuard no_grad;
  layer->weight.copy_(at::tensor({0.5, -1.5, 2.0}));
  layer->bias.copy_(at::tensor({0.1, 0.2, -0.3}));
  return layer;
}

Result run(torch::nn::BatchNorm2d& layer, const at::Tensor& rows, const at::Tensor& weights) {
  auto input = rows.clone().requires_grad_();
  const auto output = layer->forward(input);
  (output * weights).sum().backward();
  return {output.detach(),    input.grad(),        layer->weight.grad(),
          layer->bias.grad(), layer->running_mean, layer->running_var};
}

// Ranks with `sizes` samples against one normalisation of the whole batch.
void expect_equal_to_whole_batch(const std::vector<std::int64_t>& sizes, at::ScalarType type, double tolerance) {
  torch::manual_seed(5);
  const auto total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const auto rows = (at::randn({total, 3, 4, 2}, at::kDouble) * 3 + 1).to(type);
  const auto weights = at::randn({total, 3, 4, 2}, at::kDouble).to(type);
  auto whole_layer = make_layer(type);
  const auto whole = run(whole_layer, rows, weights);

  auto communicators = comm::make_local_communicators(static_cast<int>(sizes.size()), {});
  std::vector<Result> results(sizes.size());
  std::vector<std::thread> threads;
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    threads.emplace_back([&, r, begin] {
      const SyncBatchNormScope scope(*communicators[r]);
      auto layer = make_layer(type);
      results[r] = run(layer, rows.narrow(0, begin, sizes[r]), weights.narrow(0, begin, sizes[r]));
    });
    begin += sizes[r];
  }
  for (auto& thread : threads) thread.join();

  begin = 0;
  auto weight_gradient = at::zeros_like(whole.weight_gradient);
  auto bias_gradient = at::zeros_like(whole.bias_gradient);
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, begin, sizes[r]); };
    EXPECT_TRUE(at::allclose(results[r].output, part(whole.output), 0, tolerance)) << "rank " << r;
    EXPECT_TRUE(at::allclose(results[r].input_gradient, part(whole.input_gradient), 0, tolerance)) << "rank " << r;
    EXPECT_TRUE(at::allclose(results[r].running_mean, whole.running_mean, 0, tolerance)) << "rank " << r;
    EXPECT_TRUE(at::allclose(results[r].running_variance, whole.running_variance, 0, tolerance)) << "rank " << r;
    weight_gradient += results[r].weight_gradient;
    bias_gradient += results[r].bias_gradient;
    begin += sizes[r];
  }
  EXPECT_TRUE(at::allclose(weight_gradient, whole.weight_gradient, 0, 30 * tolerance));
  EXPECT_TRUE(at::allclose(bias_gradient, whole.bias_gradient, 0, 30 * tolerance));
}

TEST(SyncBatchNorm, EqualsOneNormalisationOfTheWholeBatch) {
  expect_equal_to_whole_batch({4, 4}, at::kDouble, 1e-12);
  expect_equal_to_whole_batch({8, 3, 1}, at::kDouble, 1e-12);
  expect_equal_to_whole_batch({5, 2}, at::kFloat, 2e-5);
}

TEST(SyncBatchNorm, ARankMayHaveNoSamples) {
  expect_equal_to_whole_batch({4, 0, 3}, at::kDouble, 1e-12);
}

TEST(SyncBatchNorm, LeavesEvaluationAndTheThreadAfterwardsAlone) {
  auto communicators = comm::make_local_communicators(2, {.timeout = std::chrono::seconds(1)});
  auto layer = make_layer(at::kDouble);
  const auto rows = at::randn({2, 3, 2, 2}, at::kDouble);
  const auto alone = make_layer(at::kDouble)->forward(rows);
  {
    // With one rank of two present, a synchronised forward would time out.
    const SyncBatchNormScope scope(*communicators[0]);
    layer->eval();
    layer->forward(rows);
    layer->train();
  }
  EXPECT_TRUE(at::equal(layer->forward(rows), alone));
}

TEST(SyncBatchNorm, OneValueAChannelIsRefused) {
  auto communicators = comm::make_local_communicators(2, {});
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const SyncBatchNormScope scope(*communicators[r]);
      const auto rows = at::ones({r == 0 ? 1 : 0, 3, 1, 1}, at::kDouble);
      EXPECT_THROW(at::batch_norm(rows, {}, {}, {}, {}, true, 0.1, 1e-5, false), ConfigError);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep::parallel
