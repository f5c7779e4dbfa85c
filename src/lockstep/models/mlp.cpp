#include "lockstep/models/mlp.h"

#include "lockstep/models/mlp_forward.h"

namespace lockstep::models {

Mlp::Mlp(const ModelShape& shape, const ModelOptions& options)
    : fuse_(options.fuse),
      fc1_(register_module("fc1", torch::nn::Linear(shape.channels * shape.height * shape.width, kHidden))),
      fc2_(register_module("fc2", torch::nn::Linear(kHidden, shape.classes))) {}

at::Tensor Mlp::forward(at::Tensor input) {
  const at::Tensor rows = input.flatten(1);
  if (fuse_) return mlp_forward(rows, fc1_->weight, fc1_->bias, fc2_->weight, fc2_->bias);
  return at::linear(at::relu(at::linear(rows, fc1_->weight, fc1_->bias)), fc2_->weight, fc2_->bias);
}

}  // namespace lockstep::models
