// The update rules: each works on flat runs of parameters that share options and step count.

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include <torch/torch.h>

#include "lockstep/base/options.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

namespace {

void check(const SgdOptions& options) {
  require_option(options.lr >= 0 && std::isfinite(options.lr), "lr", options.lr, "0 or more");
  require_option(options.momentum >= 0, "momentum", options.momentum, "0 or more");
  require_option(options.weight_decay >= 0, "weight_decay", options.weight_decay, "0 or more");
  require_option(!options.nesterov || (options.momentum > 0 && options.dampening == 0), "momentum with nesterov",
                 options.momentum, "more than 0, and dampening 0");
}

void check(const AdamOptions& options) {
  require_option(options.lr >= 0 && std::isfinite(options.lr), "lr", options.lr, "0 or more");
  require_option(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "0 to below 1");
  require_option(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "0 to below 1");
  require_option(options.eps >= 0, "eps", options.eps, "0 or more");
  require_option(options.weight_decay >= 0, "weight_decay", options.weight_decay, "0 or more");
}

template <typename Options>
std::vector<std::vector<at::Tensor>> parameters_of(const std::vector<ParameterGroup<Options>>& groups) {
  std::vector<std::vector<at::Tensor>> parameters;
  for (const auto& group : groups) parameters.push_back(group.parameters);
  return parameters;
}

template <typename Options>
std::vector<double> rates_of(const std::vector<ParameterGroup<Options>>& groups) {
  std::vector<double> rates;
  for (const auto& group : groups) {
    check(group.options);
    rates.push_back(group.options.lr);
  }
  require_option(groups.size() < 2 || rates.front() > 0, "lr of the first of several groups", rates.front(),
                 "more than 0, since the other groups keep their ratio to it");
  return rates;
}

template <typename Options>
std::vector<Options> options_of(const std::vector<ParameterGroup<Options>>& groups) {
  std::vector<Options> options;
  for (const auto& group : groups) options.push_back(group.options);
  return options;
}

template <typename T>
std::span<T> span_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<T>(), static_cast<std::size_t>(tensor.numel())};
}

template <typename T>
std::span<T> state_span(const std::vector<at::Tensor>& state, std::size_t index) {
  return index < state.size() ? span_of<T>(state[index]) : std::span<T>{};
}

bool uses_fused_operators(const at::Tensor& values, const UpdateScale& scale) {
  return values.is_cuda() || scale.is_on_device();
}

/// What at::_fused_*_ divides gradients by, and whether it leaves everything as it is.
struct FusedScale {
  std::optional<at::Tensor> divisor, found_inf;
};

// The operators take the divisor in fp32: with fp64 gradients the exact one is multiplied in before.
FusedScale fused_scale(const at::Tensor& gradients, const UpdateScale& scale) {
  const bool is_exact = gradients.scalar_type() == at::kDouble;
  FusedScale fused;
  if (scale.found_inf.defined()) fused.found_inf = scale.found_inf;
  if (is_exact || !scale.is_on_device()) {
    if (scale.host != 1) gradients.mul_(scale.host);
    if (scale.device.defined()) gradients.mul_(scale.device);
  } else if (scale.device.defined()) {
    fused.divisor = (scale.device * scale.host).to(at::kFloat).reciprocal();
  } else {
    fused.divisor = at::full({}, 1 / scale.host, gradients.options().dtype(at::kFloat));
  }
  // They look at either only when both are there.
  const auto scalar = gradients.options().dtype(at::kFloat);
  if (fused.divisor && !fused.found_inf) fused.found_inf = at::zeros({}, scalar);
  if (fused.found_inf && !fused.divisor) fused.divisor = at::ones({}, scalar);
  return fused;
}

}  // namespace

SGD::SGD(std::vector<at::Tensor> parameters, const SgdOptions& options)
    : SGD(std::vector<ParameterGroup<SgdOptions>>{{std::move(parameters), options}}) {}

SGD::SGD(std::vector<ParameterGroup<SgdOptions>> groups)
    : Optimizer(parameters_of(groups), rates_of(groups)), options_(options_of(groups)) {}

bool SGD::decides_on_device() const noexcept {
  return std::all_of(options_.begin(), options_.end(), [](const auto& options) { return options.dampening == 0; });
}

std::vector<std::string> SGD::state_names() const {
  for (const auto& options : options_) {
    if (options.momentum > 0) return {"momentum_buffer"};
  }
  return {};
}

void SGD::update(const Run& run) {
  const auto& options = options_[static_cast<std::size_t>(run.group)];
  const bool first_step = run.step == 1;
  if (uses_fused_operators(run.values, *run.scale)) {
    const auto scale = fused_scale(run.gradients, *run.scale);
    const std::vector<at::Tensor> momentum = options.momentum > 0 ? run.state : std::vector<at::Tensor>{};
    // The buffer starts as zeros, so the first step is one like the others unless there is dampening.
    const bool sets_momentum = first_step && !momentum.empty() && options.dampening != 0;
    const auto call = [&](const auto& lr) {
      at::_fused_sgd_({run.values}, {run.gradients}, momentum, options.weight_decay, options.momentum, lr,
                      options.dampening, options.nesterov, /*maximize=*/false, sets_momentum, scale.divisor,
                      scale.found_inf);
    };
    return run.device_lr.defined() ? call(run.device_lr) : call(run.lr);
  }
  const kernels::SgdStep step{.lr = run.lr,
                              .momentum = options.momentum,
                              .dampening = options.dampening,
                              .weight_decay = options.weight_decay,
                              .nesterov = options.nesterov,
                              .first_step = first_step,
                              .grad_scale = run.scale->host};
  AT_DISPATCH_FLOATING_TYPES(run.values.scalar_type(), "sgd", [&] {
    kernels::sgd_step<scalar_t>(span_of<scalar_t>(run.values), span_of<scalar_t>(run.gradients),
                                state_span<scalar_t>(run.state, 0), step);
  });
}

Adam::Adam(std::vector<at::Tensor> parameters, const AdamOptions& options)
    : Adam(std::vector<ParameterGroup<AdamOptions>>{{std::move(parameters), options}}) {}

Adam::Adam(std::vector<ParameterGroup<AdamOptions>> groups) : Adam(std::move(groups), false) {}

Adam::Adam(std::vector<ParameterGroup<AdamOptions>> groups, bool decoupled_weight_decay)
    : Optimizer(parameters_of(groups), rates_of(groups)),
      options_(options_of(groups)),
      decoupled_weight_decay_(decoupled_weight_decay) {}

std::vector<std::string> Adam::state_names() const {
  for (const auto& options : options_) {
    if (options.amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  }
  return {"exp_avg", "exp_avg_sq"};
}

void Adam::update(const Run& run) {
  const auto& options = options_[static_cast<std::size_t>(run.group)];
  const auto largest = options.amsgrad ? std::vector<at::Tensor>{run.state[2]} : std::vector<at::Tensor>{};
  if (uses_fused_operators(run.values, *run.scale)) {
    const auto scale = fused_scale(run.gradients, *run.scale);
    auto step = at::full({}, static_cast<double>(run.step), run.values.options().dtype(at::kFloat));
    if (run.scale->not_taken_back.defined()) step.sub_(run.scale->not_taken_back);
    const auto call = [&](auto fused, const auto& lr) {
      fused(at::TensorList{run.values}, at::TensorList{run.gradients}, at::TensorList{run.state[0]},
            at::TensorList{run.state[1]}, at::TensorList(largest), at::TensorList{step}, lr, options.beta1,
            options.beta2, options.weight_decay, options.eps, options.amsgrad, /*maximize=*/false, scale.divisor,
            scale.found_inf);
    };
    const auto call_with = [&](const auto& lr) {
      if (decoupled_weight_decay_)
        call([](auto&&... arguments) { at::_fused_adamw_(arguments...); }, lr);
      else
        call([](auto&&... arguments) { at::_fused_adam_(arguments...); }, lr);
    };
    return run.device_lr.defined() ? call_with(run.device_lr) : call_with(run.lr);
  }
  const kernels::AdamStep step{.lr = run.lr,
                               .beta1 = options.beta1,
                               .beta2 = options.beta2,
                               .eps = options.eps,
                               .weight_decay = options.weight_decay,
                               .decoupled_weight_decay = decoupled_weight_decay_,
                               .step = run.step,
                               .grad_scale = run.scale->host};
  AT_DISPATCH_FLOATING_TYPES(run.values.scalar_type(), "adam", [&] {
    kernels::adam_step<scalar_t>(span_of<scalar_t>(run.values), span_of<scalar_t>(run.gradients),
                                 span_of<scalar_t>(run.state[0]), span_of<scalar_t>(run.state[1]), step,
                                 kernels::best_cpu_level(), state_span<scalar_t>(largest, 0));
  });
}

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamOptions& options)
    : AdamW(std::vector<ParameterGroup<AdamOptions>>{{std::move(parameters), options}}) {}

AdamW::AdamW(std::vector<ParameterGroup<AdamOptions>> groups) : Adam(std::move(groups), true) {}

}  // namespace lockstep::optim
