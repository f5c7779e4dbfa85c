#pragma once

#include "lockstep/models/model.h"

namespace lockstep::models {

/// Flatten, fc1 = Linear(inputs, 128), ReLU, fc2 = Linear(128, classes); parameters fc1.weight, fc1.bias, fc2.weight,
/// fc2.bias. Takes images of any size: inputs = channels * height * width.
class Mlp : public Model {
 public:
  static constexpr std::int64_t kHidden = 128;

  Mlp(const ModelShape& shape, const ModelOptions& options);
  at::Tensor forward(at::Tensor input) override;

 private:
  bool fuse_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
};

}  // namespace lockstep::models
