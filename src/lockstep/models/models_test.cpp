#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "lockstep/base/error.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/models/conv_relu_pool.h"
#include "lockstep/models/loss.h"
#include "lockstep/models/mlp_forward.h"
#include "lockstep/models/model.h"

namespace lockstep::models {
namespace {

at::TensorOptions doubles() {
  return at::TensorOptions().dtype(at::kDouble);
}

/// Leaves like `tensors` with gradients of their own.
std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const auto& tensor : tensors) out.push_back(tensor.detach().clone().requires_grad_(true));
  return out;
}

using Operation = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Values and all gradients of `ours` against `theirs`, for a random gradient of the output.
void expect_same(const std::vector<at::Tensor>& inputs, const Operation& ours, const Operation& theirs,
                 double tolerance) {
  const auto a = leaves(inputs), b = leaves(inputs);
  const at::Tensor got = ours(a), want = theirs(b);
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LE((got - want).abs().max().item<double>(), tolerance);
  const at::Tensor gradient = at::randn_like(want);
  got.backward(gradient);
  want.backward(gradient);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE((a[i].grad() - b[i].grad()).abs().max().item<double>(), tolerance) << "gradient " << i;
  }
}

/// Central differences of sum(output * gradient) in every element of every input.
void expect_numerical_gradients(const std::vector<at::Tensor>& inputs, const Operation& operation, double tolerance) {
  const auto variables = leaves(inputs);
  const at::Tensor output = operation(variables);
  const at::Tensor gradient = at::randn_like(output);
  output.backward(gradient);
  constexpr double kStep = 1e-6;
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    auto* values = variables[i].data_ptr<double>();
    const auto* got = variables[i].grad().const_data_ptr<double>();
    for (std::int64_t k = 0; k < variables[i].numel(); ++k) {
      const double value = values[k];
      values[k] = value + kStep;
      const double above = (operation(variables) * gradient).sum().item<double>();
      values[k] = value - kStep;
      const double below = (operation(variables) * gradient).sum().item<double>();
      values[k] = value;
      ASSERT_NEAR(got[k], (above - below) / (2 * kStep), tolerance) << "input " << i << " element " << k;
    }
  }
}

const Operation kFusedConvolution = [](const auto& v) { return conv_relu_pool(v[0], v[1], v[2]); };
const Operation kPlainConvolution = [](const auto& v) { return conv_relu_pool_unfused(v[0], v[1], v[2]); };
const Operation kFusedMlp = [](const auto& v) { return mlp_forward(v[0], v[1], v[2], v[3], v[4]); };
const Operation kPlainMlp = [](const auto& v) {
  return at::linear(at::relu(at::linear(v[0], v[1], v[2])), v[3], v[4]);
};

TEST(ConvReluPoolOp, EqualsAtenInDouble) {
  torch::manual_seed(1);
  for (const auto& [n, c, h, w, f] :
       {std::array{2, 3, 32, 32, 64}, {1, 1, 3, 3, 1}, {17, 2, 5, 8, 7}, {33, 4, 9, 6, 20}}) {
    expect_same({at::randn({n, c, h, w}, doubles()), at::randn({f, c, 3, 3}, doubles()), at::randn({f}, doubles())},
                kFusedConvolution, kPlainConvolution, 1e-12);
  }
}

TEST(ConvReluPoolOp, NumericalGradients) {
  torch::manual_seed(2);
  expect_numerical_gradients(
      {at::randn({2, 2, 5, 6}, doubles()), at::randn({3, 2, 3, 3}, doubles()), at::randn({3}, doubles())},
      kFusedConvolution, 1e-7);
}

TEST(ConvReluPoolOp, TakesAnyStridesAndFloat) {
  torch::manual_seed(3);
  const auto x = at::randn({2, 10, 12, 3}).permute({0, 3, 1, 2});  // channels last
  expect_same({x, at::randn({64, 3, 3, 3}), at::randn({64})}, kFusedConvolution, kPlainConvolution, 1e-4);
  const auto w = at::randn({64, 3, 3, 3}), b = at::randn({64});
  EXPECT_TRUE(at::equal(conv_relu_pool(x, w, b), conv_relu_pool(x.contiguous(), w, b)));
}

TEST(ConvReluPoolOp, OtherShapesAndTypesFallBackToAten) {
  const auto w5 = at::randn({4, 3, 5, 5}), w = at::randn({4, 3, 3, 3}), b = at::randn({4}), x = at::randn({2, 3, 8, 8});
  EXPECT_TRUE(at::equal(conv_relu_pool(x, w5, b), conv_relu_pool_unfused(x, w5, b)));
  EXPECT_EQ(conv_relu_pool(x.narrow(0, 0, 0), w, b).sizes(), (std::vector<std::int64_t>{0, 4}));
  const auto half = [](const at::Tensor& t) { return t.to(at::kBFloat16); };
  EXPECT_TRUE(at::equal(conv_relu_pool(half(x), half(w), half(b)), conv_relu_pool_unfused(half(x), half(w), half(b))));
  EXPECT_THROW(conv_relu_pool(at::randn({2, 5, 8, 8}), w, b), c10::Error);
}

TEST(ConvReluPoolOp, GradientsDoNotDependOnTheNumberOfThreads) {
  torch::manual_seed(4);
  const std::vector<at::Tensor> inputs{at::randn({50, 3, 12, 12}), at::randn({64, 3, 3, 3}), at::randn({64})};
  const int before = at::get_num_threads();
  std::vector<at::Tensor> first;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const auto variables = leaves(inputs);
    kFusedConvolution(variables).sum().backward();
    if (first.empty()) {
      for (const auto& variable : variables) first.push_back(variable.grad());
    }
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(variables[i].grad(), first[i])) << threads << " " << i;
  }
  at::set_num_threads(before);
}

TEST(FusedOps, RefuseToBeDifferentiatedTwice) {
  const auto x = at::randn({2, 1, 4, 4}).requires_grad_(true);
  const auto pooled = conv_relu_pool(x, at::randn({2, 1, 3, 3}), at::randn({2}));
  EXPECT_THROW(torch::autograd::grad({pooled.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true), ConfigError);
  const auto logits = at::randn({2, 3}).requires_grad_(true);
  const auto loss = cross_entropy(logits, at::zeros({2}, at::kLong));
  EXPECT_THROW(torch::autograd::grad({loss}, {logits}, {}, std::nullopt, /*create_graph=*/true), ConfigError);
}

TEST(CrossEntropyOp, EqualsAtenAndNumericalGradients) {
  torch::manual_seed(5);
  const auto target = at::randint(0, 10, {32}, at::kLong);
  const Operation ours = [&](const auto& v) { return cross_entropy(v[0], target); };
  const Operation theirs = [&](const auto& v) { return at::cross_entropy_loss(v[0], target); };
  const auto logits = at::randn({32, 10}, doubles()) * 3;
  expect_same({logits}, ours, theirs, 1e-12);
  expect_numerical_gradients({logits}, ours, 1e-7);
  expect_same({at::randn({32, 10})}, ours, theirs, 1e-6);
}

TEST(CrossEntropyOp, BackwardFromTheSampleCountGivesTheSumsGradient) {
  const auto logits = at::randn({8, 5}, doubles()).requires_grad_(true);
  const auto target = at::randint(0, 5, {8}, at::kLong);
  cross_entropy(logits, target).backward(at::full({}, 8.0, doubles()));
  const auto want = logits.detach().softmax(1) - at::one_hot(target, 5);
  EXPECT_LE((logits.grad() - want).abs().max().item<double>(), 1e-15);
}

TEST(CrossEntropyOp, ATargetOutOfRangeIsNamed) {
  const auto logits = at::randn({3, 10}).requires_grad_(true);
  const auto target = at::tensor({1, 2, 10}, at::kLong);
  try {
    cross_entropy(logits, target);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "sample 2 of the batch has target 10; expected 0 to 9");
  }
}

TEST(MlpForward, EqualsAtenAndNumericalGradients) {
  torch::manual_seed(6);
  const auto inputs = [](int n, int i, int h, int o) {
    return std::vector<at::Tensor>{at::randn({n, i}, doubles()), at::randn({h, i}, doubles()),
                                   at::randn({h}, doubles()), at::randn({o, h}, doubles()), at::randn({o}, doubles())};
  };
  expect_same(inputs(32, 784, 128, 10), kFusedMlp, kPlainMlp, 1e-11);
  expect_same(inputs(1, 3, 2, 1), kFusedMlp, kPlainMlp, 1e-12);
  expect_numerical_gradients(inputs(3, 4, 5, 2), kFusedMlp, 1e-7);
}

TEST(MakeModel, NamesShapesAndFusedEqualsPlain) {
  const std::vector<std::pair<std::string, std::string>> parameters{
      {"cnn", "0.weight 0.bias 4.weight 4.bias "}, {"mlp", "fc1.weight fc1.bias fc2.weight fc2.bias "}};
  for (const auto& [name, want] : parameters) {
    torch::manual_seed(3);
    const auto fused = make_model(name, {3, 9, 7, 6}, {.fuse = true});
    torch::manual_seed(3);
    const auto plain = make_model(name, {3, 9, 7, 6}, {.fuse = false});
    std::string names;
    for (const auto& parameter : fused->named_parameters()) names += parameter.key() + " ";
    EXPECT_EQ(names, want);
    fused->to(at::kDouble);
    plain->to(at::kDouble);
    const auto x = at::randn({5, 3, 9, 7}, doubles());
    const auto target = at::randint(0, 6, {5}, at::kLong);
    const auto a = fused->forward(x), b = plain->forward(x);
    EXPECT_EQ(a.sizes(), (std::vector<std::int64_t>{5, 6}));
    cross_entropy(a, target).backward();
    at::cross_entropy_loss(b, target).backward();
    EXPECT_LE((a - b).abs().max().item<double>(), 1e-12);
    const auto pa = fused->parameters(), pb = plain->parameters();
    for (std::size_t i = 0; i < pa.size(); ++i) {
      EXPECT_LE((pa[i].grad() - pb[i].grad()).abs().max().item<double>(), 1e-12) << name << " parameter " << i;
    }
    at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(fused->forward(x), a)) << name << ": evaluation differs from training";
  }
}

TEST(MakeModel, AnUnknownNameListsTheKnownOnes) {
  try {
    make_model("cnnn", {1, 28, 28, 10});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("unknown model 'cnnn'; known models: cnn, mlp"), std::string::npos) << what;
    EXPECT_NE(what.find("did you mean 'cnn'?"), std::string::npos) << what;
  }
  EXPECT_THROW(make_model("cnn", {1, 2, 28, 10}), ConfigError);
  EXPECT_THROW(make_model("mlp", {1, 28, 28, 0}), ConfigError);
}

/// torch/optim's single-tensor steps, operation by operation.
void aten_sgd(at::Tensor& p, at::Tensor g, at::Tensor& buffer, const kernels::SgdStep& o) {
  if (o.weight_decay != 0) g = g.add(p, o.weight_decay);
  if (o.momentum != 0) {
    buffer = o.first_step ? g.clone() : buffer.mul_(o.momentum).add_(g, 1 - o.dampening);
    g = o.nesterov ? g.add(buffer, o.momentum) : buffer;
  }
  p.add_(g, -o.lr);
}

void aten_adam(at::Tensor& p, at::Tensor g, at::Tensor& m, at::Tensor& v, const kernels::AdamStep& o) {
  if (o.weight_decay != 0 && o.decoupled_weight_decay) p.mul_(1 - o.lr * o.weight_decay);
  if (o.weight_decay != 0 && !o.decoupled_weight_decay) g = g.add(p, o.weight_decay);
  m.lerp_(g, 1 - o.beta1);
  v.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
  const double step_size = o.lr / (1 - std::pow(o.beta1, double(o.step)));
  const auto denominator = v.sqrt().div_(std::sqrt(1 - std::pow(o.beta2, double(o.step)))).add_(o.eps);
  p.addcdiv_(m, denominator, -step_size);
}

template <typename T>
std::span<T> span(const at::Tensor& t) {
  return {t.data_ptr<T>(), static_cast<std::size_t>(t.numel())};
}

template <typename T>
void expect_optimizers_equal_aten(at::ScalarType type) {
  torch::manual_seed(8);
  constexpr std::int64_t kSize = 1003;
  for (kernels::SgdStep o : {kernels::SgdStep{.lr = 0.1},
                             {.lr = 0.1, .weight_decay = 0.01},
                             {.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.01},
                             {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}}) {
    at::Tensor want = at::randn({kSize}, type), got = want.clone(), want_buffer, got_buffer = at::empty({kSize}, type);
    for (int step = 0; step < 5; ++step) {
      o.first_step = step == 0;
      const auto g = at::randn({kSize}, type);
      aten_sgd(want, g, want_buffer, o);
      kernels::sgd_step<T>(span<T>(got), span<T>(g), span<T>(got_buffer), o);
      ASSERT_TRUE(at::equal(got, want)) << "momentum " << o.momentum << " step " << step;
    }
  }
  for (kernels::AdamStep o : {kernels::AdamStep{.lr = 0.01},
                              {.lr = 0.01, .weight_decay = 0.1},
                              {.lr = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = true}}) {
    at::Tensor want = at::randn({kSize}, type), got = want.clone(), m = at::zeros({kSize}, type), v = m.clone();
    const at::Tensor got_m = m.clone(), got_v = m.clone();
    for (o.step = 1; o.step <= 5; ++o.step) {
      const auto g = at::randn({kSize}, type);
      aten_adam(want, g, m, v, o);
      kernels::adam_step<T>(span<T>(got), span<T>(g), span<T>(got_m), span<T>(got_v), o);
      ASSERT_TRUE(at::equal(got_m, m)) << "exp_avg, step " << o.step;
      ASSERT_TRUE(at::equal(got_v, v)) << "exp_avg_sq, step " << o.step;
      // ATen takes square roots from MKL, which rounds some of them the other way; ours are correctly rounded.
      const double error = ((got - want).abs() / want.abs().clamp_min(o.lr)).max().template item<double>();
      ASSERT_LE(error, 8 * std::numeric_limits<T>::epsilon())
          << "values, step " << o.step << " decay " << o.weight_decay;
    }
  }
}

TEST(OptimizerKernels, EqualAtensOperationsToTheLastBits) {
  if (kernels::best_cpu_level() == kernels::CpuLevel::kBaseline) GTEST_SKIP() << "needs a CPU with AVX2 and FMA";
  expect_optimizers_equal_aten<float>(at::kFloat);
  expect_optimizers_equal_aten<double>(at::kDouble);
}

}  // namespace
}  // namespace lockstep::models
