#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::models {

enum class Random {
  kSame,  ///< the second run draws the random numbers of the first
  kNone,  ///< the function draws none: generators are left alone, as a CUDA graph's capture demands
};

struct RecomputeOptions {
  Random random = Random::kSame;
  /// What the function changes besides its result, such as BatchNorm's running statistics: put back after the second
  /// run, so that they move once a step. Held until the graph is freed.
  std::vector<at::Tensor> buffers = {};
};

using RecomputedFunction = std::function<at::Tensor(const at::Tensor&)>;

/// function(input) that keeps no activations for backward but `input`: backward runs the function a second time, with
/// the generators (CPU and the input's device) and autocast as they were the first time, and differentiates that
/// ("activation checkpointing", Chen et al. 2016). Result, gradients and the state of the generators afterwards are bit
/// for bit those of function(input); gradients of parameters that the function uses arrive in their `.grad` and run
/// their hooks as ever, those of inputs that it captures too. Uses may be nested.
///
/// The function is kept until the graph is freed. Both runs must do the same, in the same training mode. Autocast's
/// cache is off inside, so that a cast made by one run, or outside, never serves the other run's graph. The result
/// requires a gradient even if nothing in the function does. A parameter that is used in several recomputed parts gets
/// its gradient in as many pieces. Without gradients (NoGradGuard) it is function(input) and nothing more. Any thread.
///
/// backward throws ConfigError when it is asked for a graph of itself (create_graph) or for chosen gradients only
/// (autograd::grad, backward with inputs), which would run into the `.grad` of others; and when the second run drew
/// other random numbers than the first: generators are shared by all threads of a process, so with random numbers on
/// the CPU only one thread may train.
at::Tensor recompute(RecomputedFunction function, const at::Tensor& input, RecomputeOptions options = {});

/// The same for a module's forward; its buffers are looked after.
template <typename M>
requires std::derived_from<M, torch::nn::Module> at::Tensor recompute(const std::shared_ptr<M>& module,
                                                                      const at::Tensor& input,
                                                                      Random random = Random::kSame) {
  return recompute([module](const at::Tensor& x) { return module->forward(x); }, input,
                   {.random = random, .buffers = module->buffers()});
}

}  // namespace lockstep::models
