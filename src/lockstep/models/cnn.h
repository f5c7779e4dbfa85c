#pragma once

#include "lockstep/models/model.h"

namespace lockstep::models {

/// The tutorial's network, as Python's
/// `nn.Sequential(Conv2d(channels, 64, 3), ReLU(), AdaptiveAvgPool2d(1), Flatten(), Linear(64, classes))`:
/// parameters 0.weight, 0.bias, 4.weight, 4.bias. Images must be at least 3 x 3.
class Cnn : public Model {
 public:
  static constexpr std::int64_t kFilters = 64;

  Cnn(const ModelShape& shape, const ModelOptions& options);
  at::Tensor forward(at::Tensor input) override;

 private:
  bool fuse_;
  torch::nn::Conv2d convolution_;
  torch::nn::Linear linear_;
};

}  // namespace lockstep::models
