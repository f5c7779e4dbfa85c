#include "lockstep/train/engine.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kClipEps = 1e-6;  // torch.nn.utils.clip_grad_norm_'s

std::vector<optim::NamedTensor> trained_parameters(const torch::nn::Module& model, const optim::Optimizer& optimizer) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& entry : model.named_parameters()) names.emplace(entry.value().unsafeGetTensorImpl(), entry.key());
  std::vector<optim::NamedTensor> parameters;
  for (const auto& tensor : optimizer.parameters()) {
    const auto found = names.find(tensor.unsafeGetTensorImpl());
    if (found == names.end()) {
      throw ConfigError(text("the optimizer's tensor number ", parameters.size(), " is no parameter of the model"),
                        "make the optimizer from model->parameters(), after the model has its final device and type");
    }
    parameters.push_back({found->second, tensor});
  }
  return parameters;
}

std::vector<optim::NamedTensor> buffers_of(const torch::nn::Module& model) {
  std::vector<optim::NamedTensor> buffers;
  for (const auto& entry : model.named_buffers()) buffers.push_back({entry.key(), entry.value()});
  return buffers;
}

}  // namespace

Engine::Engine(torch::nn::Module& model, optim::Optimizer& optimizer, parallel::Strategy& strategy,
               EngineOptions options)
    : strategy_(strategy),
      optimizer_(optimizer),
      options_(options),
      arena_(trained_parameters(model, optimizer), strategy.arena_gradients()),
      schedule_(options_.schedule.value_or(optim::Schedule{.base_lr = optimizer.lr()})) {
  if (options_.precision == amp::Precision::kFp16) scaler_.emplace(options_.scaler);
  if (options_.decisions == Decisions::kOnDevice && !optimizer.decides_on_device()) {
    throw ConfigError(text("Decisions::kOnDevice: ", optimizer.name(), " with these options needs the host's"),
                      "use Decisions::kAuto; sgd without dampening, adam and adamw can be decided on the device");
  }
  if (scaler_ && decides_on_device()) device_scaler_ = std::make_unique<amp::DeviceScaler>(*scaler_, arena_.device());
  strategy_.attach(arena_, buffers_of(model));
  if (strategy_.layout_is_fixed()) optimizer_.bind(arena_, strategy_.update_plan());
}

void Engine::fix_layout(const std::vector<std::string>& names) {
  strategy_.fix_layout(names.empty() ? parallel::layout_names(arena_) : names);
  optimizer_.bind(arena_, strategy_.update_plan());
}

StepResult Engine::micro_step(std::int64_t samples, bool last, const LossFunction& loss_function) {
  if (samples < 1) {
    throw ConfigError(text("a micro-batch of ", samples, " samples: expected 1 or more"),
                      "a rank that has no more data calls join() instead, and the others go on");
  }
  backward_has_begun_ = false;
  try {
    return run_micro_step(samples, last, loss_function);
  } catch (const CommError&) {
    throw;  // the others are told, or gone
  } catch (...) {
    // What goes wrong in there goes wrong on all ranks; the first exception says more.
    try {
      if (window_is_open_) fail_micro_step(samples, last);
    } catch (const std::exception&) {
    }
    throw;
  }
}

// The others may be in the middle of an exchange: this rank brings its part of it, of whatever value.
void Engine::fail_micro_step(std::int64_t samples, bool last) {
  weight_of(static_cast<double>(samples));  // the others may be agreeing on its unit
  window_.failed = 1;
  window_.loss_scale = loss_scale_to_compare();
  if (!backward_has_begun_) strategy_.begin_backward(last, window_);
  strategy_.fail_step();
  if (!last) return;
  // Where backward threw behind its last gradient, everything was sent by then: the others make this update.
  StepResult ignored;
  const parallel::StepSums sums = exchange();
  sums.failed > 0 ? drop(sums, ignored) : update(sums, ignored);
}

// All ranks come here together. Publishing keeps module buffers equal, which forward has moved.
void Engine::drop(const parallel::StepSums& sums, StepResult& result) {
  result.dropped = true;
  result.failed_rank = sums.failed_rank;
  result.samples = sums.loss_count;
  result.stop = sums.stop;
  result.step = num_steps_;
  strategy_.publish();
}

StepResult Engine::run_micro_step(std::int64_t samples, bool last, const LossFunction& loss_function) {
  const auto start = Clock::now();
  if (!window_is_open_) open_window();
  has_accumulated_ = has_accumulated_ || !last;
  const at::Tensor loss = forward(loss_function, arena_.device().type());
  const auto forward_end = Clock::now();
  times_.forward += forward_end - start;
  const double count = static_cast<double>(samples);
  const double weight = weight_of(count);
  window_.count += weight;
  window_.loss_count += count;
  const bool on_cpu = loss.device().is_cpu();
  if (on_cpu) window_.loss += loss.item<double>() * count;
  if (!on_cpu) losses_.add(loss, count);

  if (last) {
    arena_.check_views();
    window_.stop = stop_requested_;
  }
  window_.loss_scale = loss_scale_to_compare();
  strategy_.begin_backward(last, window_);
  backward_has_begun_ = true;
  backward(loss, weight);
  const auto backward_end = Clock::now();
  times_.backward += backward_end - forward_end;

  StepResult result;
  result.step = num_steps_;
  if (!last) return result;
  last_count_ = window_.count;
  const parallel::StepSums sums = exchange();
  const auto exchange_end = Clock::now();
  times_.exchange += exchange_end - backward_end;
  if (sums.failed > 0) {
    drop(sums, result);
    return result;
  }
  if (on_cpu) {
    losses_.add(sums.loss, sums.loss_count);
    result.loss = sums.loss / sums.loss_count;
  }
  update(sums, result);
  times_.update += Clock::now() - exchange_end;
  ++times_.steps;
  return result;
}

// Gradients are cleared here and not after an update: another engine's loss may have reached these parameters since.
void Engine::open_window() {
  arena_.zero_gradients();
  strategy_.begin_step();
  window_ = {};
  window_is_open_ = true;
}

// Note [Weights and fp16]
// Gradients are weighted by samples, which multiplies what backward computes by the batch size. In fp16 that would cost
// as many powers of two of range, so there a weight is relative to rank 0's first micro-batch.
double Engine::weight_of(double samples) {
  if (weight_unit_ == 0) weight_unit_ = scaler_ ? std::max(1.0, strategy_.broadcast(samples)) : 1.0;
  return options_.average == Average::kSamples ? samples / weight_unit_ : 1.0;
}

at::Tensor Engine::forward(const LossFunction& loss_function, at::DeviceType device_type) {
  std::optional<parallel::SyncBatchNormScope> sync;
  if (options_.sync_batch_norm != nullptr) sync.emplace(*options_.sync_batch_norm);
  std::optional<amp::AutocastScope> autocast;
  if (const auto type = amp::autocast_type(options_.precision)) autocast.emplace(device_type, *type);
  at::Tensor loss = loss_function();
  // A scaled loss does not fit into fp16.
  return loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16 ? loss.to(at::kFloat) : loss;
}

bool Engine::decides_on_device() const {
  if (options_.decisions != Decisions::kAuto) return options_.decisions == Decisions::kOnDevice;
  return arena_.device().is_cuda() && optimizer_.decides_on_device();
}

// Scales that are equal once stay equal, since ranks agree on what overflowed: on the device the first one is compared.
double Engine::loss_scale_to_compare() const {
  if (!scaler_ || (device_scaler_ && device_scaler_->num_pending() > 0)) return 1;
  return scaler_->scale();
}

void Engine::backward(const at::Tensor& loss, double weight) {
  if (device_scaler_) return loss.backward((device_scaler_->scale() * weight).to(loss.scalar_type()));
  if (scaler_) weight *= scaler_->scale();
  // Starting backward from `weight` makes gradients of weight * loss without an operation of its own in the graph.
  if (!backward_weight_.defined() || weight != backward_weight_value_ ||
      backward_weight_.scalar_type() != loss.scalar_type()) {
    backward_weight_ = at::full({}, weight, loss.options().requires_grad(false));
    backward_weight_value_ = weight;
  }
  loss.backward(backward_weight_);
}

std::int64_t Engine::join() {
  std::int64_t updates = 0;
  if (has_accumulated_ && !arena_.holds_gradients()) {
    throw ConfigError(
        "join() under zero2 with gradient accumulation: its ranks exchange gradients in every micro-batch, "
        "and a rank without data cannot know how many there are",
        "use zero1 or ddp, or accumulate 1");
  }
  weight_of(0);  // a rank without any data takes part in agreeing on the unit
  for (;;) {
    if (!window_is_open_) {
      open_window();
      window_.active = 0;
      const bool counts = options_.average == Average::kRanks && options_.join_divisor == JoinDivisor::kWorld;
      if (counts) window_.count = last_count_;
    }
    window_.loss_scale = loss_scale_to_compare();
    window_.stop = stop_requested_;
    strategy_.begin_backward(/*last=*/true, window_);
    const parallel::StepSums sums = exchange();
    if (sums.active == 0) return updates;
    StepResult result;
    if (sums.failed > 0) {
      drop(sums, result);
      continue;
    }
    update(sums, result);
    ++updates;
    if (result.took_back) --updates;
  }
}

parallel::StepSums Engine::exchange() {
  window_is_open_ = false;  // whatever finish() throws, all ranks throw, and nothing is left to exchange
  parallel::StepSums sums = strategy_.finish();
  if (!optimizer_.is_bound()) optimizer_.bind(arena_, strategy_.update_plan());
  return sums;
}

// All ranks judge the same sums; shards are judged together.
bool Engine::overflowed() {
  return !std::isfinite(optim::gradient_norm(arena_, optimizer_.plan(), 1.0));
}

double Engine::clip(double gradient_scale) {
  const auto& plan = optimizer_.plan();
  if (options_.clip_value) {
    optim::clip_gradient_values(arena_, plan, at::full({}, *options_.clip_value / gradient_scale, at::kDouble));
  }
  if (!options_.clip_norm) return gradient_scale;
  const double norm = optim::gradient_norm(arena_, plan, gradient_scale);
  last_gradient_norm_ = at::full({}, norm, at::kDouble);
  return gradient_scale * std::min(1.0, *options_.clip_norm / (norm + kClipEps));
}

std::optional<double> Engine::last_gradient_norm() const {
  if (!last_gradient_norm_.defined()) return std::nullopt;
  return last_gradient_norm_.item<double>();
}

void Engine::update(const parallel::StepSums& sums, StepResult& result) {
  if (sums.count == 0) throw ConfigError("no rank brought a sample to this update: expected at least one");
  result.samples = sums.loss_count;
  result.stop = sums.stop;
  result.lr = schedule_.lr(num_steps_);
  decides_on_device() ? update_on_device(sums, result) : update_on_host(sums, result);
  strategy_.publish();
  if (status_) status_->set_step(local_rank_, num_steps_);
}

void Engine::update_on_host(const parallel::StepSums& sums, StepResult& result) {
  result.skipped = scaler_ && overflowed();
  if (scaler_) scaler_->update(result.skipped);
  if (result.skipped) return;
  const double gradient_scale = clip(1.0 / (sums.count * sums.loss_scale));
  if (observer_) observer_(gradient_scale, sums.unused);
  optimizer_.step(result.lr, gradient_scale, sums.unused);
  result.updated = true;
  result.step = ++num_steps_;
}

// Queues clipping, the judgement on overflow and the update; what they need of each other stays on the device.
void Engine::update_on_device(const parallel::StepSums& sums, StepResult& result) {
  at::NoGradGuard no_grad;
  const auto& plan = optimizer_.plan();
  optim::UpdateScale scale{.host = 1 / sums.count};
  at::Tensor norm;
  if (scaler_) {
    norm = optim::gradient_norm_on_device(arena_, plan);
    scale.found_inf = norm.isfinite().logical_not().to(at::kFloat);
    scale.device = device_scaler_->scale().reciprocal();
    scale.not_taken_back = device_scaler_->not_heard();
    scale.lr = rate_on_device();
  }
  const auto whole_scale = [&] {
    return scale.device.defined() ? scale.device * scale.host
                                  : at::full({}, scale.host, at::TensorOptions(at::kDouble).device(arena_.device()));
  };
  if (options_.clip_value) {
    optim::clip_gradient_values(arena_, plan, *options_.clip_value / whole_scale());
    norm.reset();  // no longer theirs
  }
  if (options_.clip_norm) {
    if (!norm.defined()) norm = optim::gradient_norm_on_device(arena_, plan);
    last_gradient_norm_ = norm * whole_scale();
    const auto coefficient = (*options_.clip_norm / (last_gradient_norm_ + kClipEps)).clamp_max_(1);
    scale.device = scale.device.defined() ? scale.device * coefficient : coefficient;
  }
  if (observer_) observer_(whole_scale().item<double>(), sums.unused);
  optimizer_.step(result.lr, scale, sums.unused);
  result.updated = true;
  ++num_steps_;
  if (scaler_) {
    pending_unused_.push_back(sums.unused);
    device_scaler_->update(scale.found_inf);
    if (device_scaler_->num_pending() > amp::DeviceScaler::kLag) hear_of_update(result);
  }
  result.step = num_steps_;
}

// The schedule does not advance on a skipped update, and how many were skipped lately only the device knows.
at::Tensor Engine::rate_on_device() const {
  std::vector<float> rates;
  for (std::size_t back = 0; back <= device_scaler_->num_pending(); ++back) {
    rates.push_back(static_cast<float>(schedule_.lr(num_steps_ - static_cast<std::int64_t>(back))));
  }
  if (std::equal(rates.begin() + 1, rates.end(), rates.begin())) return {};
  const auto on_host = at::tensor(rates, at::TensorOptions(at::kFloat).pinned_memory(arena_.device().is_cuda()));
  const auto skipped = device_scaler_->not_heard().to(at::kLong).unsqueeze(0);
  return on_host.to(arena_.device(), /*non_blocking=*/true).index_select(0, skipped).squeeze(0);
}

void Engine::hear_of_update(StepResult& result) {
  const auto unused = std::move(pending_unused_.front());
  pending_unused_.pop_front();
  if (!device_scaler_->hear()) return;
  optimizer_.take_back(unused);
  --num_steps_;
  result.took_back = true;
}

void Engine::settle() {
  StepResult ignored;
  while (device_scaler_ && device_scaler_->num_pending() > 0) hear_of_update(ignored);
}

void Engine::set_num_steps(std::int64_t num_steps) {
  num_steps_ = num_steps;
  optimizer_.set_num_steps(num_steps);
}

void Engine::report_to(StatusBoard board, int local_rank) {
  status_ = std::move(board);
  local_rank_ = local_rank;
  status_->set_step(local_rank_, num_steps_);
}

}  // namespace lockstep::train
