#include "lockstep/optim/optimizer.h"

#include <cmath>
#include <span>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/kernels/optimizer.h"

namespace lockstep::optim {

namespace {

void require(bool holds, std::string_view what, double value, std::string_view expected) {
  if (!holds) throw ConfigError(text(what, " is ", value, ": expected ", expected));
}

template <typename T>
std::span<T> span_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.data_ptr<T>(), static_cast<std::size_t>(tensor.numel())};
}

// The scale is applied in place on CUDA, since at::_fused_*_ takes it only together with a found-inf tensor.
void scale_on_device(at::Tensor& gradients, double gradient_scale) {
  if (gradient_scale != 1) gradients.mul_(gradient_scale);
}

}  // namespace

SGD::SGD(std::vector<at::Tensor> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters), options.lr), options_(options) {
  require(options.lr >= 0 && std::isfinite(options.lr), "lr", options.lr, "0 or more");
  require(options.momentum >= 0, "momentum", options.momentum, "0 or more");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "0 or more");
  require(!options.nesterov || (options.momentum > 0 && options.dampening == 0), "momentum with nesterov",
          options.momentum, "more than 0, and dampening 0");
}

void SGD::bind(ParameterArena& arena) {
  arena_ = &arena;
  if (options_.momentum > 0) momentum_buffer_ = at::zeros_like(arena.values());
}

void SGD::step(double lr, double gradient_scale) {
  const bool first_step = num_steps_++ == 0;
  auto& values = arena_->values();
  if (values.is_cuda()) {
    scale_on_device(arena_->gradients(), gradient_scale);
    std::vector<at::Tensor> momentum;
    if (momentum_buffer_.defined()) momentum.push_back(momentum_buffer_);
    at::_fused_sgd_({values}, {arena_->gradients()}, momentum, options_.weight_decay, options_.momentum, lr,
                    options_.dampening, options_.nesterov, /*maximize=*/false,
                    first_step && momentum_buffer_.defined());
    return;
  }
  const kernels::SgdStep step{.lr = lr,
                              .momentum = options_.momentum,
                              .dampening = options_.dampening,
                              .weight_decay = options_.weight_decay,
                              .nesterov = options_.nesterov,
                              .first_step = first_step,
                              .grad_scale = gradient_scale};
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "sgd", [&] {
    kernels::sgd_step<scalar_t>(span_of<scalar_t>(values), span_of<scalar_t>(arena_->gradients()),
                                span_of<scalar_t>(momentum_buffer_), step);
  });
}

std::vector<NamedTensor> SGD::state() {
  if (!momentum_buffer_.defined()) return {};
  return {{"momentum_buffer", momentum_buffer_}};
}

Adam::Adam(std::vector<at::Tensor> parameters, const AdamOptions& options)
    : Optimizer(std::move(parameters), options.lr), options_(options) {
  require(options.lr >= 0 && std::isfinite(options.lr), "lr", options.lr, "0 or more");
  require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "0 to below 1");
  require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "0 to below 1");
  require(options.eps >= 0, "eps", options.eps, "0 or more");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "0 or more");
}

void Adam::bind(ParameterArena& arena) {
  arena_ = &arena;
  exp_avg_ = at::zeros_like(arena.values());
  exp_avg_sq_ = at::zeros_like(arena.values());
}

void Adam::step(double lr, double gradient_scale) {
  ++num_steps_;
  auto& values = arena_->values();
  if (values.is_cuda()) {
    scale_on_device(arena_->gradients(), gradient_scale);
    const auto step = at::full({}, static_cast<double>(num_steps_), values.options().dtype(at::kFloat));
    if (decoupled_weight_decay_) {
      at::_fused_adamw_({values}, {arena_->gradients()}, {exp_avg_}, {exp_avg_sq_}, {}, {step}, lr, options_.beta1,
                        options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
    } else {
      at::_fused_adam_({values}, {arena_->gradients()}, {exp_avg_}, {exp_avg_sq_}, {}, {step}, lr, options_.beta1,
                       options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
    }
    return;
  }
  const kernels::AdamStep step{.lr = lr,
                               .beta1 = options_.beta1,
                               .beta2 = options_.beta2,
                               .eps = options_.eps,
                               .weight_decay = options_.weight_decay,
                               .decoupled_weight_decay = decoupled_weight_decay_,
                               .step = num_steps_,
                               .grad_scale = gradient_scale};
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "adam", [&] {
    kernels::adam_step<scalar_t>(span_of<scalar_t>(values), span_of<scalar_t>(arena_->gradients()),
                                 span_of<scalar_t>(exp_avg_), span_of<scalar_t>(exp_avg_sq_), step);
  });
}

std::vector<NamedTensor> Adam::state() {
  if (!exp_avg_.defined()) return {};
  return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
}

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamOptions& options) : Adam(std::move(parameters), options) {
  decoupled_weight_decay_ = true;
}

double gradient_norm(ParameterArena& arena, double gradient_scale) {
  auto& gradients = arena.gradients();
  if (gradients.is_cuda()) return at::linalg_vector_norm(gradients).item<double>() * gradient_scale;
  return AT_DISPATCH_FLOATING_TYPES(gradients.scalar_type(), "gradient_norm", [&] {
    return std::sqrt(kernels::sum_of_squares<scalar_t>(span_of<scalar_t>(gradients))) * gradient_scale;
  });
}

}  // namespace lockstep::optim
