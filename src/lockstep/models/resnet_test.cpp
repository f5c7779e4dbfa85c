#include "lockstep/models/resnet.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "lockstep/models/loss.h"

namespace lockstep::models {
namespace {

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

void add_norm(Shapes& shapes, const std::string& name, std::int64_t channels) {
  for (const char* part : {"weight", "bias", "running_mean", "running_var"}) shapes[name + "." + part] = {channels};
  shapes[name + ".num_batches_tracked"] = {};
}

/// torchvision's state dict, by formula.
Shapes torchvision_shapes(bool bottleneck, std::int64_t channels, std::int64_t stem, std::int64_t classes) {
  Shapes shapes;
  shapes["conv1.weight"] = {64, channels, stem, stem};
  add_norm(shapes, "bn1", 64);
  const int depths[2][4] = {{2, 2, 2, 2}, {3, 4, 6, 3}};
  std::int64_t inputs = 64;
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t width = 64 << stage, outputs = bottleneck ? 4 * width : width;
    for (int i = 0; i < depths[bottleneck ? 1 : 0][stage]; ++i) {
      const std::string block = "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".";
      shapes[block + "conv1.weight"] = {width, inputs, bottleneck ? 1 : 3, bottleneck ? 1 : 3};
      shapes[block + "conv2.weight"] = {width, width, 3, 3};
      add_norm(shapes, block + "bn1", width);
      add_norm(shapes, block + "bn2", width);
      if (bottleneck) {
        shapes[block + "conv3.weight"] = {outputs, width, 1, 1};
        add_norm(shapes, block + "bn3", outputs);
      }
      if (i == 0 && inputs != outputs) {
        shapes[block + "downsample.0.weight"] = {outputs, inputs, 1, 1};
        add_norm(shapes, block + "downsample.1", outputs);
      }
      inputs = outputs;
    }
  }
  shapes["fc.weight"] = {classes, inputs};
  shapes["fc.bias"] = {classes};
  return shapes;
}

Shapes shapes_of(const Model& model) {
  Shapes shapes;
  for (const auto& [name, tensor] : model.state_dict()) shapes[name] = tensor.sizes().vec();
  return shapes;
}

std::int64_t num_parameters(const Model& model) {
  std::int64_t numel = 0;
  for (const auto& parameter : model.parameters()) numel += parameter.numel();
  return numel;
}

TEST(ResNet, NamesAndShapesAreTorchvisions) {
  EXPECT_EQ(shapes_of(*make_model("resnet18", {3, 224, 224, 1000})), torchvision_shapes(false, 3, 7, 1000));
  EXPECT_EQ(shapes_of(*make_model("resnet50", {3, 224, 224, 1000})), torchvision_shapes(true, 3, 7, 1000));
  EXPECT_EQ(shapes_of(*make_model("resnet18", {1, 28, 28, 10})), torchvision_shapes(false, 1, 3, 10));
}

TEST(ResNet, NumberOfParametersIsTorchvisions) {
  EXPECT_EQ(num_parameters(*make_model("resnet18", {3, 224, 224, 1000})), 11'689'512);
  EXPECT_EQ(num_parameters(*make_model("resnet50", {3, 224, 224, 1000})), 25'557'032);
}

TEST(ResNet, TheStemIsSmallUpTo64Pixels) {
  const auto stem = [](std::int64_t height, std::int64_t width) {
    return make_model("resnet18", {3, height, width, 10})->named_parameters()["conv1.weight"].size(2);
  };
  EXPECT_EQ(stem(64, 64), 3);
  EXPECT_EQ(stem(65, 64), 7);
  EXPECT_EQ(stem(64, 65), 7);
}

TEST(ResNet, InitialValuesAreHesAndOneAndZero) {
  torch::manual_seed(1);
  const auto model = make_model("resnet50", {3, 32, 32, 10});
  for (const auto& [name, tensor] : model->state_dict()) {
    if (tensor.dim() == 4) {
      const double want = std::sqrt(2.0 / static_cast<double>(tensor.size(0) * tensor.size(2) * tensor.size(3)));
      EXPECT_NEAR(tensor.std().item<double>() / want, 1.0, 0.1) << name;
    } else if (name.find("bn") != std::string::npos || name.find("downsample.1") != std::string::npos) {
      const bool one = name.ends_with("weight") || name.ends_with("running_var");
      EXPECT_TRUE(at::all(tensor == (one ? 1 : 0)).item<bool>()) << name;
    }
  }
}

TEST(ResNet, ZeroGammaOfTheLastNormOfEachBlockMakesItTheIdentity) {
  for (const auto& [name, last] :
       {std::pair<std::string, std::string>{"resnet18", "bn2.weight"}, {"resnet50", "bn3.weight"}}) {
    torch::manual_seed(1);
    const auto plain = make_model(name, {3, 8, 8, 10});
    torch::manual_seed(1);
    const auto zero = make_model(name, {3, 8, 8, 10}, {.zero_gamma = true});
    const auto other = plain->named_parameters();
    int zeros = 0;
    for (const auto& entry : zero->named_parameters()) {
      const bool is_last = entry.key().starts_with("layer") && entry.key().ends_with(last);
      zeros += is_last ? 1 : 0;
      EXPECT_TRUE(at::equal(entry.value(), is_last ? at::zeros_like(entry.value()) : other[entry.key()]))
          << name << " " << entry.key();
    }
    EXPECT_EQ(zeros, name == "resnet18" ? 8 : 16);
  }
}

TEST(ResNet, TheCountOfBatchesStaysAnIntegerInEveryPrecision) {
  const auto model = make_model("resnet18", {3, 8, 8, 10});
  model->to(at::kDouble);
  model->to(at::Device(at::kCPU), at::kBFloat16);
  for (const auto& [name, tensor] : model->state_dict()) {
    EXPECT_EQ(tensor.scalar_type(), name.ends_with("num_batches_tracked") ? at::kLong : at::kBFloat16) << name;
  }
}

/// Gradients and buffers after one training step, in fp64.
StateDict after_backward(Model& model, const at::Tensor& x) {
  model.to(at::kDouble);
  const auto logits = model.forward(x);
  cross_entropy(logits, at::arange(x.size(0)) % logits.size(1)).backward();
  StateDict out{{"logits", logits.detach()}};
  for (const auto& entry : model.named_parameters()) out.emplace_back(entry.key(), entry.value().grad());
  for (const auto& entry : model.named_buffers()) out.emplace_back(entry.key(), entry.value());
  return out;
}

TEST(ResNet, ChannelsLastIsTheSameNetwork) {
  torch::manual_seed(1);
  const auto plain = make_model("resnet18", {3, 16, 16, 10});
  torch::manual_seed(1);
  const auto last = make_model("resnet18", {3, 16, 16, 10}, {.channels_last = true});
  const auto x = at::randn({2, 3, 16, 16}, at::kDouble);
  const auto want = after_backward(*plain, x), got = after_backward(*last, x);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i].second, want[i].second, 1e-8, 1e-9)) << want[i].first;
  }
  const auto weight = last->named_parameters()["layer1.0.conv2.weight"];
  EXPECT_TRUE(weight.is_contiguous(at::MemoryFormat::ChannelsLast)) << "after to(double)";
  EXPECT_FALSE(weight.is_contiguous());
}

TEST(ResNet, RecomputingIsBitForBitTheSame) {
  torch::manual_seed(1);
  const auto plain = make_model("resnet50", {3, 8, 8, 10});
  torch::manual_seed(1);
  const auto recomputed = make_model("resnet50", {3, 8, 8, 10}, {.recompute = true});
  const auto x = at::randn({2, 3, 8, 8}, at::kDouble);
  const auto want = after_backward(*plain, x), got = after_backward(*recomputed, x);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i].second, want[i].second)) << want[i].first;
  }
}

}  // namespace
}  // namespace lockstep::models
