#include "lockstep/optim/large_batch.h"

#include <gtest/gtest.h>

#include <cmath>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/ema.h"

namespace lockstep::optim {
namespace {

struct Net {
  at::Tensor weight = at::randn({5, 4}, at::kDouble).requires_grad_();
  at::Tensor bias = at::randn({5}, at::kDouble).requires_grad_();
  ParameterArena arena{{{"weight", weight}, {"bias", bias}}};
};

at::Tensor gradient_of(const at::Tensor& parameter, int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step + parameter.dim() * 100));
  return at::randn(parameter.sizes(), generator, at::kDouble);
}

// The paper's rules, one parameter at a time, against the optimizer over the arena.
TEST(Lamb, FollowsThePapersRule) {
  Net net;
  const LambOptions options{.lr = 0.02, .weight_decay = 0.1};
  Lamb lamb({net.weight, net.bias}, options);
  lamb.bind(net.arena);
  std::vector<at::Tensor> parameters{net.weight, net.bias}, values, m, v;
  for (const auto& parameter : parameters) {
    values.push_back(parameter.detach().clone());
    m.push_back(at::zeros_like(parameter));
    v.push_back(at::zeros_like(parameter));
  }
  for (int step = 1; step <= 5; ++step) {
    for (std::size_t p = 0; p < 2; ++p) {
      const auto g = gradient_of(parameters[p], step);
      parameters[p].mutable_grad().copy_(g * 3);  // the optimizer is told to scale by a third
      m[p] = 0.9 * m[p] + 0.1 * g;
      v[p] = 0.999 * v[p] + 0.001 * g * g;
      const auto m_hat = m[p] / (1 - std::pow(0.9, step)), v_hat = v[p] / (1 - std::pow(0.999, step));
      const auto direction = m_hat / (v_hat.sqrt() + options.eps) + 0.1 * values[p];
      const double trust = p == 0 ? (values[p].norm() / direction.norm()).item<double>() : 1;
      values[p] = values[p] - options.lr * trust * direction;
    }
    lamb.step(options.lr, 1.0 / 3);
    for (std::size_t p = 0; p < 2; ++p) EXPECT_TRUE(at::allclose(parameters[p], values[p], 1e-12, 1e-12)) << step;
  }
}

TEST(Lars, FollowsThePapersRule) {
  Net net;
  const LarsOptions options{.lr = 0.5, .momentum = 0.8, .weight_decay = 0.01, .trust = 0.02};
  Lars lars({net.weight, net.bias}, options);
  lars.bind(net.arena);
  std::vector<at::Tensor> parameters{net.weight, net.bias}, values, momentum;
  for (const auto& parameter : parameters) {
    values.push_back(parameter.detach().clone());
    momentum.push_back(at::zeros_like(parameter));
  }
  for (int step = 1; step <= 5; ++step) {
    for (std::size_t p = 0; p < 2; ++p) {
      const auto g = gradient_of(parameters[p], step);
      parameters[p].mutable_grad().copy_(g * 3);
      auto direction = g;
      if (p == 0) {
        const auto rate = 0.02 * values[p].norm() / (g.norm() + 0.01 * values[p].norm() + options.eps);
        direction = rate * (g + 0.01 * values[p]);
      }
      momentum[p] = 0.8 * momentum[p] + direction;
      values[p] = values[p] - options.lr * momentum[p];
    }
    lars.step(options.lr, 1.0 / 3);
    for (std::size_t p = 0; p < 2; ++p) EXPECT_TRUE(at::allclose(parameters[p], values[p], 1e-12, 1e-12)) << step;
  }
}

TEST(LargeBatch, RefusesOptionsOutOfRange) {
  EXPECT_THROW(Lamb({}, {.lr = -1}), ConfigError);
  EXPECT_THROW(Lars({}, {.trust = 0}), ConfigError);
}

TEST(Ema, AveragesSwapsAndRefuses) {
  Net net;
  const auto start = net.weight.detach().clone();
  ExponentialMovingAverage ema(net.arena, 0.75);
  {
    torch::NoGradGuard no_grad;
    net.weight.add_(4);
  }
  ema.update();
  EXPECT_EQ(ema.tensors()[1].name, "weight");
  EXPECT_TRUE(at::allclose(ema.tensors()[1].tensor, start + 1));
  ema.swap();
  EXPECT_TRUE(at::allclose(net.weight, start + 1));
  ema.swap();
  EXPECT_TRUE(at::allclose(net.weight, start + 4));
  net.arena.check_views();
  EXPECT_THROW(ExponentialMovingAverage(net.arena, 1), ConfigError);
}

// fp16 and bf16 weights move by less than their last bit: the fp32 master keeps what they cannot show.
TEST(Masters, SmallStepsAddUpInHalfPrecision) {
  auto weight = at::ones({8}, at::kBFloat16).requires_grad_();
  ParameterArena arena({{"weight", weight}});
  SGD sgd({weight}, {.lr = 1e-3});
  sgd.bind(arena);
  for (int step = 0; step < 100; ++step) {
    weight.mutable_grad().fill_(1);
    sgd.step(1e-3, 1.0);
  }
  EXPECT_NEAR(weight[0].item<double>(), 0.9, 0.003);
  ASSERT_EQ(sgd.state().size(), 1U);
  EXPECT_EQ(sgd.state()[0].name, "master");
  EXPECT_NEAR(sgd.state()[0].tensor[0].item<double>(), 0.9, 1e-5);
}

}  // namespace
}  // namespace lockstep::optim
