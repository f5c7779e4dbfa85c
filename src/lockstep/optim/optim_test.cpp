#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/arena.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {
namespace {

std::vector<NamedTensor> named_parameters(torch::nn::Module& module) {
  std::vector<NamedTensor> parameters;
  for (const auto& entry : module.named_parameters()) parameters.push_back({entry.key(), entry.value()});
  return parameters;
}

torch::nn::Sequential small_net() {
  torch::nn::Sequential net(torch::nn::Linear(7, 5), torch::nn::ReLU(), torch::nn::Linear(5, 3));
  net->to(at::kDouble);
  return net;
}

TEST(Arena, ViewsKeepValuesAndTakeGradients) {
  auto net = small_net();
  const auto before = net->parameters()[0].clone();
  ParameterArena arena(named_parameters(*net));
  EXPECT_TRUE(at::equal(net->parameters()[0], before));
  EXPECT_EQ(arena.segments().front().name, "2.bias") << "last parameter first";
  net->forward(at::ones({2, 7}, at::kDouble)).sum().backward();
  EXPECT_GT(arena.buffers()[0].gradients.abs().sum().item<double>(), 0);
  arena.check_views();
  arena.zero_gradients();
  EXPECT_EQ(net->parameters()[0].grad().abs().sum().item<double>(), 0);
}

TEST(Arena, HoldsTiedWeightsOnce) {
  auto net = small_net();
  auto parameters = named_parameters(*net);
  parameters.push_back({"again", parameters[0].tensor});
  EXPECT_EQ(ParameterArena(parameters).segments().size(), 4U);
}

TEST(Arena, KeepsChannelsLastStrides) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 8, 3));
  conv->to(at::kFloat);
  conv->weight.set_data(conv->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
  const auto before = conv->weight.detach().clone();
  ParameterArena arena(named_parameters(*conv));
  EXPECT_TRUE(conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::equal(conv->weight, before));
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Arena, NamesTheParameterWhoseViewBroke) {
  auto net = small_net();
  ParameterArena arena(named_parameters(*net));
  net->parameters()[2].mutable_grad() = at::Tensor();
  EXPECT_NE(message_of([&] { arena.check_views(); }).find("parameter 2.weight was given another gradient"),
            std::string::npos);
  auto other = small_net();
  ParameterArena other_arena(named_parameters(*other));
  other->to(at::kFloat);
  EXPECT_NE(message_of([&] { other_arena.check_views(); }).find("moved, converted or replaced"), std::string::npos);
}

TEST(Arena, HoldsOneBufferATypeAndMovesToAnotherLayout) {
  auto net = small_net();
  net[2]->to(at::kFloat);
  ParameterArena arena(named_parameters(*net));
  ASSERT_EQ(arena.buffers().size(), 2U);
  EXPECT_EQ(arena.buffers()[0].values.scalar_type(), at::kFloat);
  const auto before = net->parameters()[0].detach().clone();
  net->parameters()[0].mutable_grad().fill_(3);
  // Model order: 0.weight, 0.bias (double), 2.weight, 2.bias (float).
  arena.apply({.order = {0, 2, 1, 3}, .offset = {0, 0, 64, 32}, .numel = {64, 128}});
  EXPECT_EQ(arena.segments()[1].name, "2.weight");
  EXPECT_TRUE(at::equal(net->parameters()[0], before));
  EXPECT_TRUE(at::equal(net->parameters()[0].grad(), at::full_like(before, 3)));
  arena.check_views();
}

TEST(Arena, BR043_RefusesWhatItCannotHold) {
  auto complex = at::ones({2}, at::kComplexFloat).requires_grad_();
  const auto integer = at::ones({2}, at::kLong);
  EXPECT_NE(message_of([&] {
              ParameterArena({{"c", complex}});
            }).find("parameter c has type ComplexFloat"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              ParameterArena({{"a", integer}});
            }).find("no parameter that requires a gradient"),
            std::string::npos);
}

// Ours over the arena against LibTorch's own optimizers, on the same gradients.
template <typename Ours, typename Theirs>
void expect_equal_to_libtorch(Ours make_ours, Theirs make_theirs) {
  torch::manual_seed(3);
  auto net = small_net();
  auto twin = small_net();
  {
    torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < 4; ++p) twin->parameters()[p].copy_(net->parameters()[p]);
  }
  auto ours = make_ours(net->parameters());
  auto theirs = make_theirs(twin->parameters());
  ParameterArena arena(named_parameters(*net));
  ours.bind(arena);
  for (int step = 0; step < 20; ++step) {
    const auto input = at::randn({6, 7}, at::kDouble);
    (net->forward(input).pow(2).sum() * 4).backward();
    theirs.zero_grad();
    twin->forward(input).pow(2).sum().backward();
    ours.step(ours.lr(), 0.25);
    theirs.step();
    arena.zero_gradients();
  }
  for (std::size_t p = 0; p < 4; ++p) {
    EXPECT_LT((net->parameters()[p] - twin->parameters()[p]).abs().max().template item<double>(), 1e-12);
  }
}

TEST(Optimizer, SgdEqualsLibTorch) {
  expect_equal_to_libtorch(
      [](auto p) { return SGD(p, {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}); },
      [](auto p) {
        return torch::optim::SGD(p, torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1).nesterov(true));
      });
}

TEST(Optimizer, AdamEqualsLibTorch) {
  expect_equal_to_libtorch(
      [](auto p) { return Adam(p, {.lr = 0.01, .weight_decay = 0.1}); },
      [](auto p) { return torch::optim::Adam(p, torch::optim::AdamOptions(0.01).weight_decay(0.1)); });
}

TEST(Optimizer, AmsgradEqualsLibTorch) {
  expect_equal_to_libtorch(
      [](auto p) { return Adam(p, {.lr = 0.01, .beta2 = 0.5, .amsgrad = true}); },
      [](auto p) {
        return torch::optim::Adam(p, torch::optim::AdamOptions(0.01).betas({0.9, 0.5}).amsgrad(true));
      });
}

TEST(Optimizer, AdamWEqualsLibTorch) {
  expect_equal_to_libtorch(
      [](auto p) { return AdamW(p, {.lr = 0.01, .weight_decay = 0.1}); },
      [](auto p) { return torch::optim::AdamW(p, torch::optim::AdamWOptions(0.01).weight_decay(0.1)); });
}

TEST(Optimizer, RefusesOptionsOutOfRange) {
  EXPECT_THROW(SGD({}, {.lr = -1}), ConfigError);
  EXPECT_THROW(SGD({}, {.nesterov = true}), ConfigError);
  EXPECT_THROW(Adam({}, {.beta1 = 1}), ConfigError);
}

}  // namespace
}  // namespace lockstep::optim
