#include "lockstep/amp/grad_scaler.h"

#include <algorithm>
#include <cmath>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/options.h"
#include "lockstep/base/text.h"

namespace lockstep::amp {

namespace {

void require(bool holds, std::string_view what, double value, std::string_view expected) {
  require_option(holds, text("GradScaler: ", what), value, expected);
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.initial_scale) {
  require(options.least_scale > 0 && std::isfinite(options.least_scale), "least_scale", options.least_scale, "above 0");
  require(options.initial_scale >= options.least_scale && std::isfinite(options.initial_scale), "initial_scale",
          options.initial_scale, "least_scale or more");
  require(options.growth_factor >= 1, "growth_factor", options.growth_factor, "1 or more");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor", options.backoff_factor,
          "above 0 and below 1");
  require(options.growth_interval >= 1, "growth_interval", static_cast<double>(options.growth_interval), "1 or more");
  require(options.most_skips >= 1, "most_skips", options.most_skips, "1 or more");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return loss * scale_;
}

void GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  if (is_unscaled_) {
    throw Error("gradients were already divided by the loss scale since the last update",
                "unscale and clip once, after the last micro-batch of an update, and call update() after step()");
  }
  at::NoGradGuard no_grad;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto gradient = parameter.grad();
      gradient.mul_(1 / scale_);
      found_inf_ = found_inf_ || !at::isfinite(gradient).all().item<bool>();
    }
  }
  is_unscaled_ = true;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!is_unscaled_) unscale(optimizer);
  if (!found_inf_) optimizer.step();
  return !found_inf_;
}

void GradScaler::update() {
  update(found_inf_);
}

// torch's _amp_update_scale_: the scale only grows while it stays finite as a float.
void GradScaler::update(bool found_inf) {
  is_unscaled_ = found_inf_ = false;
  ++updates_;
  if (!found_inf) {
    skips_in_a_row_ = 0;
    if (++growth_tracker_ < options_.growth_interval) return;
    growth_tracker_ = 0;
    const double grown = scale_ * options_.growth_factor;
    if (std::isfinite(static_cast<float>(grown))) scale_ = grown;
    return;
  }
  ++skips_;
  growth_tracker_ = 0;
  const bool was_at_least = is_at_least();
  scale_ = std::max(scale_ * options_.backoff_factor, options_.least_scale);
  if (!was_at_least) {
    skips_in_a_row_ = 0;
    return;
  }
  if (++skips_in_a_row_ == 1) first_skip_ = updates_;
  if (skips_in_a_row_ < options_.most_skips) return;
  throw Error(text("the gradients were not finite in ", skips_in_a_row_, " updates in a row, from update ", first_skip_,
                   " on, though the loss scale is down to ", options_.least_scale),
              "look for an infinity or NaN in the data or in the model's output; bf16 needs no loss scale");
}

void GradScaler::load(const State& state) {
  if (!(state.scale > 0) || !std::isfinite(state.scale) || state.growth_tracker < 0) {
    throw CheckpointError(text("saved loss scale ", state.scale, " with growth tracker ", state.growth_tracker,
                               ": expected a positive number and 0 or more"));
  }
  scale_ = std::max(state.scale, options_.least_scale);
  growth_tracker_ = state.growth_tracker;
  skips_ = state.skips;
  skips_in_a_row_ = 0;
  is_unscaled_ = found_inf_ = false;
  ++num_loads_;
}

std::vector<std::string> names_of_non_finite(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && !at::isfinite(tensor).all().item<bool>()) names.push_back(name);
  }
  return names;
}

}  // namespace lockstep::amp
