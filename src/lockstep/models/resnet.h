#pragma once

#include <memory>
#include <vector>

#include "lockstep/models/model.h"

namespace lockstep::models {

class ResidualBlock;

/// ResNet-18 and ResNet-50 (He et al. 2015), the latter as v1.5: a bottleneck's stride is in its 3x3 convolution.
/// Names of parameters and buffers are torchvision's: conv1.weight, bn1.*, layer1.0.conv1.weight, ...,
/// layer2.0.downsample.0.weight, fc.*. Convolutions start from kaiming_normal (fan_out, relu), BatchNorm from 1 and 0,
/// drawn in torchvision's order. Images of at most 64 x 64 get a 3x3 stem of stride 1 without max-pool, larger ones the
/// 7x7 stem of stride 2 with it.
class ResNet : public Model {
 public:
  enum class Depth { k18, k50 };

  ResNet(Depth depth, const ModelShape& shape, const ModelOptions& options);
  at::Tensor forward(at::Tensor input) override;

 private:
  void initialize(const ModelOptions& options);

  const bool small_stem_;
  const bool channels_last_;
  const bool recompute_;
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;  // of all four layers
  torch::nn::Linear fc_{nullptr};
};

}  // namespace lockstep::models
