#include "lockstep/models/recompute.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include <ATen/autocast_mode.h>

#include "lockstep/base/error.h"

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

at::TensorOptions doubles() {
  return at::TensorOptions().dtype(at::kDouble);
}

at::Tensor generator_state() {
  return at::globalContext().defaultGenerator(at::kCPU).get_state();
}

/// Linear, BatchNorm, GELU, dropout, linear; keeps weak references to its activations.
struct Net : nn::Module {
  nn::Linear a{5, 7}, b{7, 5};
  nn::BatchNorm1d norm{7};
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> activations;
  int runs = 0;

  Net() {
    register_module("a", a);
    register_module("norm", norm);
    register_module("b", b);
    to(at::kDouble);
  }
  at::Tensor keep(const at::Tensor& tensor) {
    activations.push_back(tensor.storage().getWeakStorageImpl());
    return tensor;
  }
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    const auto h = keep(at::gelu(keep(norm->forward(keep(a->forward(x))))));
    return b->forward(keep(at::dropout(h, 0.5, true)));
  }
  std::size_t bytes_alive() const {
    std::size_t bytes = 0;
    for (const auto& activation : activations) {
      if (const auto storage = activation.lock()) bytes += storage->nbytes();
    }
    return bytes;
  }
};

std::shared_ptr<Net> seeded_net() {
  torch::manual_seed(1);
  return std::make_shared<Net>();
}

/// Everything that a step leaves behind.
std::vector<at::Tensor> traces(const Net& net, const at::Tensor& output, const at::Tensor& x) {
  std::vector<at::Tensor> out{output.detach(), generator_state()};
  for (const auto& parameter : net.parameters()) out.push_back(parameter.grad().clone());
  for (const auto& buffer : net.buffers()) out.push_back(buffer.clone());
  if (x.requires_grad()) out.push_back(x.grad());
  return out;
}

/// One step over two uses of the net, so that numbers drawn later depend on the generator after the earlier ones.
std::vector<at::Tensor> step(const std::function<at::Tensor(const std::shared_ptr<Net>&, const at::Tensor&)>& use,
                             bool input_gradient) {
  const auto net = seeded_net();
  const auto x = at::randn({4, 5}, doubles()).requires_grad_(input_gradient);
  const auto output = use(net, use(net, x));
  output.mul(at::randn({4, 5}, doubles())).sum().backward();
  return traces(*net, output, x);
}

void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << "trace " << i;
}

at::Tensor plain(const std::shared_ptr<Net>& net, const at::Tensor& x) {
  return net->forward(x);
}
at::Tensor recomputed(const std::shared_ptr<Net>& net, const at::Tensor& x) {
  return recompute(net, x);
}
at::Tensor nested(const std::shared_ptr<Net>& net, const at::Tensor& x) {
  return recompute([net](const at::Tensor& y) { return recompute(net, y * 2) + at::dropout(y, 0.3, true); }, x,
                   {.buffers = net->buffers()});
}
at::Tensor nested_plain(const std::shared_ptr<Net>& net, const at::Tensor& x) {
  return net->forward(x * 2) + at::dropout(x, 0.3, true);
}

TEST(Recompute, EqualsThePlainStepBitForBitWithDropoutAndBatchNorm) {
  for (const bool input_gradient : {true, false}) {
    expect_equal(step(recomputed, input_gradient), step(plain, input_gradient));
    expect_equal(step(nested, input_gradient), step(nested_plain, input_gradient));
  }
}

TEST(Recompute, WithoutLookingAfterBuffersStatisticsMoveTwice) {
  // What the buffers are given for: the test above would not see them if this were equal.
  const auto careless = [](const std::shared_ptr<Net>& net, const at::Tensor& x) {
    return recompute([net](const at::Tensor& y) { return net->forward(y); }, x);
  };
  const auto got = step(careless, true), want = step(plain, true);
  int different = 0;
  for (std::size_t i = 0; i < got.size(); ++i) different += at::equal(got[i], want[i]) ? 0 : 1;
  EXPECT_EQ(different, 3) << "running mean, running variance, number of batches";
}

TEST(Recompute, KeepsNoActivations) {
  const auto x = at::randn({4, 5}, doubles());
  const auto net = seeded_net();
  auto output = net->forward(x);
  EXPECT_GE(net->bytes_alive(), 3 * 4 * 7 * sizeof(double));
  output.reset();
  net->activations.clear();
  output = recompute(net, x);
  EXPECT_EQ(net->activations.size(), 4U);
  EXPECT_EQ(net->bytes_alive(), 0U);
  EXPECT_EQ(net->runs, 2);
  output.sum().backward();
  EXPECT_EQ(net->runs, 3);
  EXPECT_EQ(net->bytes_alive(), 0U);
}

TEST(Recompute, GradientsAccumulateAndRunTheirHooks) {
  const auto net = seeded_net();
  const auto x = at::randn({4, 5}, doubles());
  int calls = 0;
  net->a->weight.register_hook([&calls](const at::Tensor&) { ++calls; });
  torch::manual_seed(2);
  recompute(net, x).sum().backward();
  const auto first = net->a->weight.grad().clone();
  torch::manual_seed(2);
  recompute(net, x).sum().backward();
  EXPECT_TRUE(at::equal(net->a->weight.grad(), first + first));
  EXPECT_EQ(calls, 2);
}

TEST(Recompute, BackwardTwiceOverOneGraph) {
  const auto net = seeded_net();
  const auto x = at::randn({4, 5}, doubles()).requires_grad_(true);
  const auto loss = recompute(net, x).sum();
  loss.backward({}, /*retain_graph=*/true);
  const auto first = x.grad().clone();
  loss.backward();
  EXPECT_TRUE(at::equal(x.grad(), first + first));
}

TEST(Recompute, WithoutGradientsItIsTheFunctionAlone) {
  const auto net = seeded_net();
  net->eval();
  at::NoGradGuard no_grad;
  const auto x = at::randn({4, 5}, doubles());
  EXPECT_FALSE(recompute(net, x).requires_grad());
  EXPECT_EQ(net->runs, 1);
}

TEST(Recompute, RunsUnderTheAutocastOfTheFirstTime) {
  const auto weight = at::randn({5, 5}).requires_grad_(true);
  std::vector<at::ScalarType> seen;
  std::vector<bool> cached;
  const auto function = [&](const at::Tensor& x) {
    auto y = at::matmul(x, weight);
    seen.push_back(y.scalar_type());
    cached.push_back(at::autocast::is_autocast_cache_enabled());
    return y;
  };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto inside = recompute(function, at::randn({3, 5}));
  const auto outside = at::matmul(at::randn({3, 5}), weight);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  (inside.sum() + outside.sum()).backward();
  EXPECT_EQ(seen, (std::vector<at::ScalarType>{at::kBFloat16, at::kBFloat16}));
  EXPECT_EQ(cached, (std::vector<bool>{false, false}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Recompute, RefusesChosenGradientsAndGraphsOfGradients) {
  const auto net = seeded_net();
  const auto x = at::randn({4, 5}, doubles()).requires_grad_(true);
  EXPECT_THROW(torch::autograd::grad({recompute(net, x).sum()}, {x}), ConfigError);
  EXPECT_THROW(recompute(net, x).sum().backward({}, true, /*create_graph=*/true), ConfigError);
  EXPECT_FALSE(net->a->weight.grad().defined());
}

TEST(Recompute, AFunctionThatDrawsOtherNumbersTheSecondTimeIsFound) {
  int runs = 0;
  const auto x = at::randn({4, 5}).requires_grad_(true);
  const auto output = recompute(
      [&runs](const at::Tensor& y) {
        if (++runs == 2) at::rand({1});
        return at::dropout(y, 0.5, true);
      },
      x);
  const auto before = generator_state();
  EXPECT_THROW(output.sum().backward(), ConfigError);
  EXPECT_TRUE(at::equal(generator_state(), before)) << "the generator is put back after an error too";
}

TEST(Recompute, WhereNothingNeedsAGradientBackwardIsEmpty) {
  const auto fixed = at::randn({3});
  const auto output = recompute([&](const at::Tensor& y) { return y * fixed; }, at::randn({3}));
  EXPECT_NO_THROW(output.sum().backward());
}

}  // namespace
}  // namespace lockstep::models
