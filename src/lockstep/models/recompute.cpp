#include "lockstep/models/recompute.h"

#include <array>
#include <mutex>
#include <utility>

#include <torch/torch.h>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/engine.h>

#include "lockstep/base/error.h"

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The generators that operations on `device` draw from: the CPU's and the device's own.
std::vector<at::Generator> generators_of(at::Device device) {
  std::vector<at::Generator> generators{at::globalContext().defaultGenerator(at::kCPU)};
  if (!device.is_cpu()) generators.push_back(at::globalContext().defaultGenerator(device));
  return generators;
}

std::vector<at::Tensor> states_of(const std::vector<at::Generator>& generators) {
  std::vector<at::Tensor> states;
  for (auto generator : generators) {
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void set_states(const std::vector<at::Generator>& generators, const std::vector<at::Tensor>& states) {
  for (std::size_t i = 0; i < generators.size(); ++i) {
    auto generator = generators[i];
    const std::lock_guard lock(generator.mutex());
    generator.set_state(states[i]);
  }
}

/// For its life the generators are in `states`; afterwards as they were.
class GeneratorGuard {
 public:
  GeneratorGuard(std::vector<at::Generator> generators, const std::vector<at::Tensor>& states)
      : generators_(std::move(generators)), before_(states_of(generators_)) {
    set_states(generators_, states);
  }
  ~GeneratorGuard() { set_states(generators_, before_); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

  bool are_in(const std::vector<at::Tensor>& states) const {
    const auto now = states_of(generators_);
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (!at::equal(now[i], states[i])) return false;
    }
    return true;
  }

 private:
  const std::vector<at::Generator> generators_;
  const std::vector<at::Tensor> before_;
};

/// This thread's autocast on the CPU and on one device.
struct AutocastState {
  explicit AutocastState(at::DeviceType device) : types{at::kCPU, device} {
    for (std::size_t i = 0; i < types.size(); ++i) {
      enabled[i] = at::autocast::is_autocast_enabled(types[i]);
      dtypes[i] = at::autocast::get_autocast_dtype(types[i]);
    }
  }
  void apply() const {
    for (std::size_t i = 0; i < types.size(); ++i) {
      at::autocast::set_autocast_enabled(types[i], enabled[i]);
      at::autocast::set_autocast_dtype(types[i], dtypes[i]);
    }
    at::autocast::set_autocast_cache_enabled(cache);
  }

  std::array<at::DeviceType, 2> types;
  std::array<bool, 2> enabled{};
  std::array<at::ScalarType, 2> dtypes{};
  bool cache = at::autocast::is_autocast_cache_enabled();
};

/// For its life this thread's autocast is `state`.
class AutocastGuard {
 public:
  explicit AutocastGuard(const AutocastState& state) : before_(state.types.back()) { state.apply(); }
  ~AutocastGuard() { before_.apply(); }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const AutocastState before_;
};

/// Puts tensors back at the end of its life.
class ValueGuard {
 public:
  explicit ValueGuard(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
    at::NoGradGuard no_grad;
    for (const auto& tensor : tensors_) values_.push_back(tensor.clone());
  }
  ~ValueGuard() {
    at::NoGradGuard no_grad;
    // variable_data: a graph that saved a buffer must not take this for a change, the value is the one it saw.
    for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].variable_data().copy_(values_[i]);
  }
  ValueGuard(const ValueGuard&) = delete;
  ValueGuard& operator=(const ValueGuard&) = delete;

 private:
  const std::vector<at::Tensor>& tensors_;
  std::vector<at::Tensor> values_;
};

/// One use of recompute(): what the second run must know of the first.
struct Call : torch::CustomClassHolder {
  Call(RecomputedFunction f, RecomputeOptions o, at::Device d)
      : function(std::move(f)), options(std::move(o)), device(d), autocast(d.type()) {
    autocast.cache = false;
  }

  at::Tensor first_run(const at::Tensor& input) {
    const AutocastGuard as_outside_but_uncached(autocast);
    if (options.random == Random::kNone) return function(input);
    const auto generators = generators_of(device);
    states_before = states_of(generators);
    at::Tensor output = function(input);
    states_after = states_of(generators);
    return output;
  }

  at::Tensor second_run(const at::Tensor& input) const {
    const AutocastGuard as_the_first_time(autocast);
    const ValueGuard buffers(options.buffers);
    if (options.random == Random::kNone) return function(input);
    const GeneratorGuard generators(generators_of(device), states_before);
    at::Tensor output = function(input);
    if (!generators.are_in(states_after)) {
      throw ConfigError("recompute: the function drew other random numbers in backward than in forward",
                        "it must do the same both times, and no other thread of the process may draw meanwhile");
    }
    return output;
  }

  const RecomputedFunction function;
  const RecomputeOptions options;
  const at::Device device;
  AutocastState autocast;
  std::vector<at::Tensor> states_before, states_after;
};

constexpr const char* kCall = "call";

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  /// `anchor` requires a gradient: images do not, and then nothing would be recorded.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*anchor*/,
                            const c10::intrusive_ptr<Call>& call) {
    context->save_for_backward({input});
    context->saved_data[kCall] = c10::IValue::make_capsule(call);
    context->set_materialize_grads(false);
    return call->first_run(input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw ConfigError("recompute: cannot be differentiated twice (create_graph)", "call the function itself");
    }
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      throw ConfigError("recompute: backward was asked for chosen gradients only (autograd::grad, or inputs)",
                        "call backward() without inputs, or the function itself");
    }
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    const auto call = c10::static_intrusive_pointer_cast<Call>(context->saved_data[kCall].toCapsule());
    const at::Tensor saved = context->get_saved_variables()[0];
    at::AutoGradMode with_graph(true);
    const at::Tensor input = saved.detach().requires_grad_(saved.requires_grad());
    const at::Tensor output = call->second_run(input);
    if (output.requires_grad()) torch::autograd::backward({output}, {gradients[0]});
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recompute(RecomputedFunction function, const at::Tensor& input, RecomputeOptions options) {
  if (!at::GradMode::is_enabled()) return function(input);
  auto call = c10::make_intrusive<Call>(std::move(function), std::move(options), input.device());
  return Recompute::apply(input, at::empty({0}).requires_grad_(true), call);
}

}  // namespace lockstep::models
