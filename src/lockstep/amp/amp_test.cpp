#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/error.h"

namespace lockstep::amp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::ScalarType product_type() {
  const auto a = at::ones({4, 4});
  return at::matmul(a, a).scalar_type();
}

TEST(Autocast, NestsAndRestoresAlsoWhenAnExceptionPasses) {
  EXPECT_EQ(product_type(), at::kFloat);
  try {
    const AutocastScope outer(at::kCPU, at::kBFloat16);
    EXPECT_EQ(product_type(), at::kBFloat16);
    {
      const AutocastScope inner(at::kCPU, at::kHalf);
      EXPECT_EQ(product_type(), at::kHalf);
      const AutocastScope off(at::kCPU, at::kHalf, /*enabled=*/false);
      EXPECT_EQ(product_type(), at::kFloat);
    }
    EXPECT_EQ(product_type(), at::kBFloat16);
    throw std::runtime_error("passes");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_THROW(AutocastScope(at::kCPU, at::kFloat), ConfigError);
}

TEST(Autocast, IsAPropertyOfTheThread) {
  const AutocastScope scope(at::kCPU, at::kBFloat16);
  std::thread([] {
    EXPECT_EQ(product_type(), at::kFloat);
    const AutocastScope own(at::kCPU, at::kBFloat16);
    EXPECT_EQ(product_type(), at::kBFloat16);
  }).join();
}

// The cast copy of a weight is dropped with the outermost scope, or an update between two scopes would be lost.
TEST(Autocast, AWeightThatChangedBetweenScopesIsCastAnew) {
  auto weight = at::ones({3, 3}).requires_grad_();
  const auto input = at::ones({2, 3});
  for (const float value : {1.0F, 2.0F}) {
    {
      torch::NoGradGuard no_grad;
      weight.fill_(value);
    }
    const AutocastScope scope(at::kCPU, at::kBFloat16);
    EXPECT_EQ(at::linear(input, weight)[0][0].item<float>(), 3 * value);
  }
}

TEST(Autocast, ANoGradForwardFirstDoesNotCostTheLaterOneItsGradient) {
  auto weight = at::ones({3, 3}).requires_grad_();
  const auto input = at::ones({2, 3});
  const AutocastScope scope(at::kCPU, at::kBFloat16);
  {
    torch::NoGradGuard no_grad;
    at::linear(input, weight);
  }
  at::linear(input, weight).sum().backward();
  ASSERT_TRUE(weight.grad().defined());
  EXPECT_EQ(weight.grad()[0][0].item<float>(), 2);
}

// Scales after each update of this script (x: an infinity) as torch.amp.GradScaler of torch 2.11 gave them.
TEST(GradScaler, ScalesEqualPythonsOverAScriptOfInfinities) {
  const std::string script = "..x...xx......x.xxx...........x...";
  const std::vector<double> expected{1024, 1024, 512, 512, 512, 1024, 512, 256, 256, 256, 512, 512,
                                     512,  1024, 512, 512, 256, 128,  64,  64,  64,  128, 128, 128,
                                     256,  256,  256, 512, 512, 512,  256, 256, 256, 512};
  auto parameter = at::ones({4}).requires_grad_();
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(0.01));
  GradScaler scaler({.initial_scale = 1024, .growth_interval = 3});
  int steps = 0;
  for (std::size_t i = 0; i < script.size(); ++i) {
    optimizer.zero_grad();
    const float factor = script[i] == 'x' ? std::numeric_limits<float>::infinity() : 1.0F;
    scaler.scale((parameter * at::tensor({1.F, 2.F, 3.F, 4.F})).sum() * factor).backward();
    steps += scaler.step(optimizer) ? 1 : 0;
    scaler.update();
    EXPECT_EQ(scaler.scale(), expected[i]) << "update " << i;
    if (i != 12) continue;
    GradScaler resumed({.growth_interval = 3});
    resumed.load(scaler.state());
    EXPECT_EQ(resumed.scale(), scaler.scale());
    EXPECT_EQ(resumed.state().growth_tracker, scaler.state().growth_tracker);
  }
  EXPECT_EQ(scaler.skips(), static_cast<std::int64_t>(script.size()) - steps);
  EXPECT_NEAR(parameter[0].item<double>(), 1 - 0.01 * steps, 1e-5);
}

TEST(GradScaler, BR078_DividingTwiceIsRefusedUntilTheUpdate) {
  auto parameter = at::ones({2}).requires_grad_();
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(0.01));
  GradScaler scaler;
  scaler.scale(parameter.sum()).backward();
  scaler.unscale(optimizer);
  EXPECT_EQ(parameter.grad()[0].item<float>(), 1);
  try {
    scaler.unscale(optimizer);
    FAIL() << "divided twice";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("already divided by the loss scale"));
  }
  scaler.step(optimizer);
  EXPECT_NEAR(parameter[0].item<double>(), 0.99, 1e-6) << "step() does not divide again";
  scaler.update();
  scaler.unscale(optimizer);
}

TEST(GradScaler, BR028_TheScaleHasAFloorAndTheFirstSkipAtItIsNamed) {
  GradScaler scaler({.initial_scale = 8, .least_scale = 2, .most_skips = 3});
  scaler.update(false);
  scaler.update(true);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 2);
  scaler.update(true);
  scaler.update(true);
  try {
    scaler.update(true);
    FAIL() << "went on";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("in 3 updates in a row, from update 4 on, though the loss scale is down to 2"));
  }
  scaler.update(false);
  EXPECT_EQ(scaler.skips_in_a_row(), 0);
}

TEST(GradScaler, RefusesOptionsAndStatesOutOfRange) {
  EXPECT_THROW(GradScaler({.initial_scale = 0.5}), ConfigError);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), ConfigError);
  GradScaler scaler;
  EXPECT_THROW(scaler.load({.scale = std::numeric_limits<double>::quiet_NaN()}), CheckpointError);
}

TEST(GradScaler, NamesTensorsThatAreNotFinite) {
  EXPECT_THAT(
      names_of_non_finite(
          {{"a", at::ones({2})}, {"b", at::full({2}, std::numeric_limits<float>::infinity())}, {"c", at::Tensor()}}),
      ElementsAre("b"));
}

}  // namespace
}  // namespace lockstep::amp
