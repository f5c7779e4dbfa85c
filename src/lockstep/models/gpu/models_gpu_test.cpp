// The models on a GPU: recomputed activations with its generator and its autocast, and the same numbers as on the CPU.

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <torch/torch.h>

#include <ATen/autocast_mode.h>

#include "lockstep/models/loss.h"
#include "lockstep/models/model.h"
#include "lockstep/models/recompute.h"

namespace lockstep::models {
namespace {

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    // Nobody links libtorch_cuda, and nothing may ask about CUDA before it is there.
    ASSERT_NE(::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
    ASSERT_TRUE(torch::cuda::is_available()) << "this test needs a GPU: it has the label gpu1";
  }
};

struct DropoutNet : torch::nn::Module {
  torch::nn::Linear a{64, 64}, b{64, 64};

  DropoutNet() {
    register_module("a", a);
    register_module("b", b);
    to(at::kCUDA);
  }
  at::Tensor forward(const at::Tensor& x) {
    return b->forward(at::dropout(at::gelu(a->forward(x)), 0.5, /*train=*/true));
  }
};

/// The gradients and what the generator draws next.
std::vector<at::Tensor> dropout_step(bool recomputed) {
  torch::manual_seed(1);
  const auto net = std::make_shared<DropoutNet>();
  auto x = at::randn({32, 64}, at::kCUDA).requires_grad_(true);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  auto y = recomputed ? recompute(net, x) : net->forward(x);
  y = recomputed ? recompute(net, y) : net->forward(y);
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  at::autocast::clear_cache();
  y.to(at::kFloat).square().sum().backward();
  std::vector<at::Tensor> out{y.detach(), x.grad(), at::rand({4}, at::kCUDA)};
  for (const auto& parameter : net->parameters()) out.push_back(parameter.grad());
  return out;
}

TEST_F(OnGpu, RecomputingDrawsTheSameDropoutUnderTheSameAutocast) {
  const auto got = dropout_step(true), want = dropout_step(false);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(got[0].scalar_type(), at::kBFloat16);
  // Without recomputing, both uses' gradients of a cached cast of a weight meet in bf16; with it, in fp32.
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  for (std::size_t i = 3; i < got.size(); ++i) EXPECT_TRUE(at::allclose(got[i], want[i], 2e-2, 2e-2)) << i;
}

/// Logits and gradients in fp64 of a model on a device.
std::vector<at::Tensor> model_step(const std::shared_ptr<Model>& model, at::Tensor x, const at::Tensor& target,
                                   at::Device device) {
  model->to(device, at::kDouble);
  x = x.is_floating_point() ? x.to(device, at::kDouble) : x.to(device);
  const auto logits = model->forward(x);
  cross_entropy(logits, target.to(device)).backward();
  std::vector<at::Tensor> out{logits.detach().cpu()};
  for (const auto& parameter : model->parameters()) out.push_back(parameter.grad().cpu());
  for (const auto& buffer : model->buffers()) out.push_back(buffer.cpu());
  return out;
}

void expect_same(const std::function<std::shared_ptr<Model>(const ModelOptions&)>& make, const at::Tensor& x,
                 const at::Tensor& target) {
  const auto fresh = [&](const ModelOptions& options) {
    torch::manual_seed(2);
    return make(options);
  };
  const auto want = model_step(fresh({}), x, target, at::kCPU);
  for (const bool recomputed : {false, true}) {
    const auto got =
        model_step(fresh({.channels_last = recomputed, .recompute = recomputed}), x, target, at::Device(at::kCUDA, 0));
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], want[i], 1e-7, 1e-8)) << i << (recomputed ? " recomputed" : "");
    }
  }
}

TEST_F(OnGpu, ResNetsGiveTheCpusNumbers) {
  const auto x = at::randn({4, 3, 32, 32}, at::kDouble);
  const auto target = at::arange(4);
  for (const char* name : {"resnet18", "resnet50"}) {
    expect_same([name](const ModelOptions& options) { return make_model(name, {3, 32, 32, 10}, options); }, x, target);
  }
}

TEST_F(OnGpu, Gpt2GivesTheCpusNumbers) {
  const auto tokens = at::randint(0, 50, {3, 12}, at::kLong);
  const auto make = [](const ModelOptions& options) {
    return make_token_model("gpt2", {.vocabulary = 50, .positions = 16, .layers = 2, .heads = 3, .width = 48}, options);
  };
  expect_same(make, tokens, tokens);
}

}  // namespace
}  // namespace lockstep::models
