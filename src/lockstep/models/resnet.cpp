#include "lockstep/models/resnet.h"

#include <string>

#include "lockstep/base/text.h"
#include "lockstep/models/recompute.h"

namespace lockstep::models {

namespace nn = torch::nn;

namespace {

constexpr std::int64_t kSmallStemPixels = 64;
constexpr std::int64_t kStemFilters = 64;
constexpr std::int64_t kBottleneckExpansion = 4;

nn::Conv2d convolution(std::int64_t inputs, std::int64_t outputs, std::int64_t size, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(inputs, outputs, size).stride(stride).padding(size / 2).bias(false));
}

}  // namespace

/// Two 3x3 convolutions, or 1x1, 3x3 and 1x1 (bottleneck), added to the input.
class ResidualBlock : public nn::Module {
 public:
  ResidualBlock(std::int64_t inputs, std::int64_t width, std::int64_t stride, bool bottleneck) {
    const std::int64_t outputs = outputs_of(width, bottleneck);
    if (bottleneck) {
      add_convolution(inputs, width, 1, 1);
      add_convolution(width, width, 3, stride);
      add_convolution(width, outputs, 1, 1);
    } else {
      add_convolution(inputs, width, 3, stride);
      add_convolution(width, width, 3, 1);
    }
    if (stride != 1 || inputs != outputs) {
      downsample_ = register_module("downsample",
                                    nn::Sequential(convolution(inputs, outputs, 1, stride), nn::BatchNorm2d(outputs)));
    }
  }

  static std::int64_t outputs_of(std::int64_t width, bool bottleneck) {
    return bottleneck ? width * kBottleneckExpansion : width;
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor skip = downsample_.is_empty() ? input : downsample_->forward(input);
    at::Tensor x = input;
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      if (i > 0) x = x.relu_();
      x = norms_[i]->forward(convolutions_[i]->forward(x));
    }
    return x.add_(skip).relu_();
  }

  nn::BatchNorm2d& last_norm() { return norms_.back(); }

 private:
  void add_convolution(std::int64_t inputs, std::int64_t outputs, std::int64_t size, std::int64_t stride) {
    const auto number = std::to_string(convolutions_.size() + 1);
    convolutions_.push_back(register_module("conv" + number, convolution(inputs, outputs, size, stride)));
    norms_.push_back(register_module("bn" + number, nn::BatchNorm2d(outputs)));
  }

  std::vector<nn::Conv2d> convolutions_;
  std::vector<nn::BatchNorm2d> norms_;
  nn::Sequential downsample_{nullptr};
};

ResNet::ResNet(Depth depth, const ModelShape& shape, const ModelOptions& options)
    : small_stem_(std::max(shape.height, shape.width) <= kSmallStemPixels),
      channels_last_(options.channels_last),
      recompute_(options.recompute),
      conv1_(register_module("conv1",
                             convolution(shape.channels, kStemFilters, small_stem_ ? 3 : 7, small_stem_ ? 1 : 2))),
      bn1_(register_module("bn1", nn::BatchNorm2d(kStemFilters))) {
  const bool bottleneck = depth == Depth::k50;
  const std::vector<int> depths = bottleneck ? std::vector<int>{3, 4, 6, 3} : std::vector<int>{2, 2, 2, 2};
  std::int64_t inputs = kStemFilters;
  for (std::size_t stage = 0; stage < depths.size(); ++stage) {
    const std::int64_t width = kStemFilters << stage;
    auto layer = register_module(text("layer", stage + 1), std::make_shared<nn::Module>("layer"));
    for (int i = 0; i < depths[stage]; ++i) {
      const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      auto block = std::make_shared<ResidualBlock>(inputs, width, stride, bottleneck);
      blocks_.push_back(layer->register_module(std::to_string(i), std::move(block)));
      inputs = ResidualBlock::outputs_of(width, bottleneck);
    }
  }
  fc_ = register_module("fc", nn::Linear(inputs, shape.classes));
  initialize(options);
}

void ResNet::initialize(const ModelOptions& options) {
  at::NoGradGuard no_grad;
  for (const auto& module : modules(/*include_self=*/false)) {
    auto* convolution = module->as<nn::Conv2d>();
    if (convolution == nullptr) continue;
    at::Tensor& weight = convolution->weight;
    nn::init::kaiming_normal_(weight, 0, torch::kFanOut, torch::kReLU);
    // set_data: the parameter stays the same object, so whoever holds it sees the new strides.
    if (channels_last_) weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  if (options.zero_gamma) {
    for (const auto& block : blocks_) block->last_norm()->weight.zero_();
  }
}

at::Tensor ResNet::forward(at::Tensor input) {
  if (channels_last_) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor x = bn1_->forward(conv1_->forward(input)).relu_();
  if (!small_stem_) x = at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1});
  for (const auto& block : blocks_) {
    x = recompute_ ? recompute(block, x, Random::kNone) : block->forward(x);
  }
  return fc_->forward(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

}  // namespace lockstep::models
