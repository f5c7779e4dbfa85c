#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/torch.h>

namespace lockstep {

/// A model of the referee's cases (tests/numerics/python/cases.py), with the same parameter names. `branch` selects the
/// head of the model "branch" and is ignored by the others.
struct RefereeModel {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& input, int branch)> forward;
};

/// `fuse` concerns "cnn" and "mlp" alone.
RefereeModel make_referee_model(const std::string& name, bool fuse);

}  // namespace lockstep
