// One training step (forward, loss, backward, SGD, zeroing) of the built-in models at batch 32 on one thread, fused and
// plain, and the parts of it.

#include <benchmark/benchmark.h>

#include <span>

#include <ATen/Parallel.h>

#include "lockstep/kernels/optimizer.h"
#include "lockstep/models/conv_relu_pool.h"
#include "lockstep/models/loss.h"
#include "lockstep/models/model.h"

namespace lockstep::benchmarks {
namespace {

constexpr std::int64_t kBatch = 32;

struct Step {
  std::shared_ptr<models::Model> model;
  at::Tensor input, target, seed = at::full({}, double(kBatch), at::kFloat);
  bool fuse;

  Step(const char* name, const models::ModelShape& shape, bool fused) : fuse(fused) {
    at::set_num_threads(1);
    torch::manual_seed(0);
    model = models::make_model(name, shape, {.fuse = fused});
    input = at::randn({kBatch, shape.channels, shape.height, shape.width});
    target = at::randint(0, shape.classes, {kBatch}, at::kLong);
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::zeros_like(parameter);
  }

  at::Tensor loss() {
    const auto logits = model->forward(input);
    return fuse ? models::cross_entropy(logits, target) : at::cross_entropy_loss(logits, target);
  }

  void update() {
    for (auto& parameter : model->parameters()) {
      const auto size = static_cast<std::size_t>(parameter.numel());
      auto& gradient = parameter.mutable_grad();
      kernels::sgd_step<float>({parameter.data_ptr<float>(), size}, {gradient.const_data_ptr<float>(), size}, {},
                               {.lr = 1e-6, .grad_scale = 1.0 / kBatch});
      std::fill_n(gradient.data_ptr<float>(), size, 0.0F);
    }
  }
};

const models::ModelShape kCifar{3, 32, 32, 10}, kFashion{1, 28, 28, 10};

void whole_step(benchmark::State& state, const char* name, const models::ModelShape& shape, bool fused) {
  Step step(name, shape, fused);
  for (auto _ : state) {
    step.loss().backward(step.seed);
    step.update();
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}

void forward_only(benchmark::State& state, const char* name, const models::ModelShape& shape, bool fused) {
  Step step(name, shape, fused);
  for (auto _ : state) benchmark::DoNotOptimize(step.model->forward(step.input));
  state.SetItemsProcessed(state.iterations() * kBatch);
}

void forward_and_loss(benchmark::State& state, const char* name, const models::ModelShape& shape, bool fused) {
  Step step(name, shape, fused);
  for (auto _ : state) benchmark::DoNotOptimize(step.loss());
  state.SetItemsProcessed(state.iterations() * kBatch);
}

/// The five matrix products of the MLP's step into ready outputs: what is left of a step is overhead.
void mlp_products(benchmark::State& state) {
  at::set_num_threads(1);
  at::NoGradGuard no_grad;
  const auto x = at::randn({kBatch, 784}), w1 = at::randn({128, 784}), h = at::randn({kBatch, 128});
  const auto w2 = at::randn({10, 128}), y = at::randn({kBatch, 10});
  auto out_h = h.clone(), out_y = y.clone(), dw1 = w1.clone(), dw2 = w2.clone();
  for (auto _ : state) {
    at::mm_out(out_h, x, w1.t());
    at::mm_out(out_y, h, w2.t());
    at::mm_out(out_h, y, w2);
    at::mm_out(dw1, h.t(), x);
    at::mm_out(dw2, y.t(), h);
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}

BENCHMARK_CAPTURE(whole_step, cnn_fused, "cnn", kCifar, true);
BENCHMARK_CAPTURE(whole_step, cnn_plain, "cnn", kCifar, false);
BENCHMARK_CAPTURE(whole_step, mlp_fused, "mlp", kFashion, true);
BENCHMARK_CAPTURE(whole_step, mlp_plain, "mlp", kFashion, false);
BENCHMARK_CAPTURE(forward_only, cnn_fused, "cnn", kCifar, true);
BENCHMARK_CAPTURE(forward_and_loss, cnn_fused, "cnn", kCifar, true);
BENCHMARK_CAPTURE(forward_only, mlp_fused, "mlp", kFashion, true);
BENCHMARK_CAPTURE(forward_only, mlp_plain, "mlp", kFashion, false);
BENCHMARK_CAPTURE(forward_and_loss, mlp_fused, "mlp", kFashion, true);
BENCHMARK_CAPTURE(forward_and_loss, mlp_plain, "mlp", kFashion, false);
BENCHMARK(mlp_products);

}  // namespace
}  // namespace lockstep::benchmarks
