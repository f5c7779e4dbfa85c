#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/arena.h"

namespace lockstep::optim {

struct SgdOptions {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  ///< L2, added to the gradient
  bool nesterov = false;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  ///< Adam: L2, added to the gradient; AdamW: decoupled
};

/// An optimizer over the flat arena: state lies in flat buffers of the arena's layout and a step is one pass.
/// Formulas are torch.optim's (SGD: Sutskever et al. 2013 as PyTorch writes it; Adam: Kingma & Ba 2014; AdamW:
/// Loshchilov & Hutter 2017). It knows nothing of its parameters until the engine binds it to an arena.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual const char* name() const noexcept = 0;
  double lr() const noexcept { return lr_; }

  /// The parameters that it was made for; the engine looks their names up in the model.
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

  /// Allocates the state. The arena must outlive the optimizer's use.
  virtual void bind(ParameterArena& arena) = 0;

  /// One update with learning rate `lr` of gradients multiplied by `gradient_scale` (1 / count, times the clipping
  /// coefficient). On a CUDA arena the work is queued on the current stream. Leaves the gradients undefined in value.
  virtual void step(double lr, double gradient_scale) = 0;

  /// Flat state buffers by their torch.optim names (momentum_buffer; exp_avg, exp_avg_sq); empty before bind().
  virtual std::vector<NamedTensor> state() = 0;

  /// Updates done so far; Adam's bias correction depends on it.
  std::int64_t num_steps() const noexcept { return num_steps_; }
  void set_num_steps(std::int64_t num_steps) noexcept { num_steps_ = num_steps; }

 protected:
  Optimizer(std::vector<at::Tensor> parameters, double lr) : parameters_(std::move(parameters)), lr_(lr) {}
  ParameterArena* arena_ = nullptr;
  std::int64_t num_steps_ = 0;

 private:
  std::vector<at::Tensor> parameters_;
  double lr_;
};

class SGD final : public Optimizer {
 public:
  /// Throws ConfigError when an option is out of its range (nesterov needs momentum > 0 and dampening 0).
  SGD(std::vector<at::Tensor> parameters, const SgdOptions& options);
  const char* name() const noexcept override { return "sgd"; }
  void bind(ParameterArena& arena) override;
  void step(double lr, double gradient_scale) override;
  std::vector<NamedTensor> state() override;

 private:
  SgdOptions options_;
  at::Tensor momentum_buffer_;
};

class Adam : public Optimizer {
 public:
  Adam(std::vector<at::Tensor> parameters, const AdamOptions& options);
  const char* name() const noexcept override { return "adam"; }
  void bind(ParameterArena& arena) override;
  void step(double lr, double gradient_scale) override;
  std::vector<NamedTensor> state() override;

 protected:
  AdamOptions options_;
  bool decoupled_weight_decay_ = false;
  at::Tensor exp_avg_, exp_avg_sq_;
};

class AdamW final : public Adam {
 public:
  AdamW(std::vector<at::Tensor> parameters, const AdamOptions& options);
  const char* name() const noexcept override { return "adamw"; }
};

/// Euclidean norm of the arena's gradients times `gradient_scale`. Waits for the device on CUDA.
double gradient_norm(ParameterArena& arena, double gradient_scale);

}  // namespace lockstep::optim
