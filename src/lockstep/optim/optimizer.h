#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/arena.h"
#include "lockstep/optim/update_plan.h"

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
  bool amsgrad = false;     ///< divides by the largest second moment so far (Reddi et al. 2018)
};

/// What an update multiplies gradients by, and whether it takes place. What only the device knows is in tensors of one
/// element there, and the update is queued without waiting for them: see Optimizer::decides_on_device().
struct UpdateScale {
  double host = 1;                 ///< 1 / count, say
  at::Tensor device = {};          ///< [] times `host`; undefined: 1
  at::Tensor found_inf = {};       ///< [] fp32: 1 leaves values and state as they are; undefined: 0
  at::Tensor not_taken_back = {};  ///< [] fp32: updates that found_inf suppressed and take_back() did not hear of yet
  at::Tensor lr = {};              ///< [] fp32: the first group's rate in place of the number; undefined: the number

  bool is_on_device() const noexcept { return device.defined() || found_inf.defined(); }
};

/// Parameters that share options of their own. A schedule multiplies the rates of all groups by the same factor.
template <typename Options>
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  Options options;
};

/// An optimizer over the flat arena: state lies in flat buffers, a step is one pass over each run of parameters that
/// share options and step count. Formulas are torch.optim's.
///
/// It knows nothing of its parameters until the engine binds it to an arena. A parameter that no rank used in a step is
/// left out: it keeps its value, its state and its own step count, as with torch.optim and an undefined gradient.
/// State of fp16 and bf16 parameters is fp32, with an fp32 master copy of the values (Micikevicius et al. 2018).
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  virtual const char* name() const noexcept = 0;
  /// The first group's rate.
  double lr() const noexcept { return lr_.front(); }

  /// The parameters that it was made for, group by group; the engine looks their names up in the model.
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

  /// Allocates the state, all zero. The arena must outlive the optimizer's use. `plan` says what this rank updates.
  void bind(ParameterArena& arena, UpdatePlan plan);
  void bind(ParameterArena& arena) { bind(arena, whole_update_plan(arena)); }
  bool is_bound() const noexcept { return arena_ != nullptr; }
  const UpdatePlan& plan() const noexcept { return plan_; }

  /// One update with learning rate `lr` (for the first group; the others keep their ratio to it) of gradients times
  /// `gradient_scale` (1 / count, times the clipping coefficient). `unused[s]` leaves segment s out; empty: none.
  /// On a CUDA arena the work is queued on the current stream. Leaves the gradients undefined in value.
  void step(double lr, double gradient_scale, const std::vector<char>& unused = {}) {
    step(lr, UpdateScale{.host = gradient_scale}, unused);
  }
  void step(double lr, const UpdateScale& scale, const std::vector<char>& unused = {});

  /// Whether step() accepts an UpdateScale that is on the device, with these options.
  virtual bool decides_on_device() const noexcept { return false; }
  /// An update with these `unused` flags was suppressed by its found_inf: it no longer counts.
  void take_back(const std::vector<char>& unused);

  /// Flat state of each buffer by its torch.optim name (momentum_buffer; exp_avg, exp_avg_sq; and master, the fp32
  /// values of half-precision parameters); empty before bind().
  struct State {
    std::string name;
    int buffer = 0;
    at::Tensor tensor;  ///< [plan().state_numel[buffer]]
  };
  const std::vector<State>& state() const noexcept { return state_; }

  /// Updates done so far, and those of each parameter by its model index; Adam's bias correction depends on them.
  std::int64_t num_steps() const noexcept { return num_steps_; }
  const std::vector<std::int64_t>& parameter_steps() const noexcept { return parameter_steps_; }
  void set_num_steps(std::int64_t num_steps);
  void set_parameter_steps(std::vector<std::int64_t> steps);
  /// After values or masters were loaded: takes fp32 masters from the values.
  void copy_values_to_masters();

 protected:
  /// What one call of update() works on: equally long flat views.
  struct Run {
    at::Tensor values, gradients;   ///< fp32 or fp64
    std::vector<at::Tensor> state;  ///< in the order of state_names()
    int group = 0;
    std::int64_t step = 1;  ///< this update's number for these parameters, from 1
    double lr = 0;
    const UpdateScale* scale = nullptr;
    at::Tensor device_lr;  ///< [] of this run's group, when the rate is on the device
  };

  /// `groups[g]` are the parameters of group g and `lr[g]` its rate.
  Optimizer(std::vector<std::vector<at::Tensor>> groups, std::vector<double> lr);
  virtual std::vector<std::string> state_names() const = 0;
  virtual void update(const Run& run) = 0;
  /// True keeps every parameter piece a run of its own, for rules that need norms of single parameters.
  virtual bool by_parameter() const noexcept { return false; }
  /// Called once before the runs of a step when by_parameter(); `runs[i]` is of segment `segments[i]`. All ranks call
  /// it, also those that own nothing.
  virtual void prepare(const std::vector<Run>& /*runs*/, const std::vector<int>& /*segments*/) {}
  ParameterArena& arena() const noexcept { return *arena_; }

 private:
  std::vector<Run> make_runs(double lr, const UpdateScale& scale, const std::vector<char>& unused,
                             std::vector<int>& segments);
  void count_update(const std::vector<char>& unused, int amount);
  bool is_half(int buffer) const;

  std::vector<at::Tensor> parameters_;
  std::vector<int> group_of_parameter_;
  std::vector<double> lr_;
  ParameterArena* arena_ = nullptr;
  UpdatePlan plan_;
  std::vector<State> state_;
  std::vector<int> group_of_segment_;  // by model index
  std::vector<std::int64_t> parameter_steps_;
  std::int64_t num_steps_ = 0;
};

/// Stochastic gradient descent with momentum (Sutskever et al. 2013 as PyTorch writes it).
class SGD final : public Optimizer {
 public:
  /// Throws ConfigError when an option is out of its range (nesterov needs momentum > 0 and dampening 0).
  SGD(std::vector<at::Tensor> parameters, const SgdOptions& options);
  explicit SGD(std::vector<ParameterGroup<SgdOptions>> groups);
  const char* name() const noexcept override { return "sgd"; }
  /// Not with dampening, whose first step differs from the others.
  bool decides_on_device() const noexcept override;

 private:
  std::vector<std::string> state_names() const override;
  void update(const Run& run) override;
  std::vector<SgdOptions> options_;
};

/// Adam (Kingma & Ba 2014).
class Adam : public Optimizer {
 public:
  Adam(std::vector<at::Tensor> parameters, const AdamOptions& options);
  explicit Adam(std::vector<ParameterGroup<AdamOptions>> groups);
  const char* name() const noexcept override { return "adam"; }
  bool decides_on_device() const noexcept override { return true; }

 protected:
  Adam(std::vector<ParameterGroup<AdamOptions>> groups, bool decoupled_weight_decay);

 private:
  std::vector<std::string> state_names() const override;
  void update(const Run& run) override;
  std::vector<AdamOptions> options_;
  bool decoupled_weight_decay_ = false;
};

/// AdamW (Loshchilov & Hutter 2017).
class AdamW final : public Adam {
 public:
  AdamW(std::vector<at::Tensor> parameters, const AdamOptions& options);
  explicit AdamW(std::vector<ParameterGroup<AdamOptions>> groups);
  const char* name() const noexcept override { return "adamw"; }
};

}  // namespace lockstep::optim
