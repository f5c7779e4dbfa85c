#include "lockstep/train/trainer.h"
#include "lockstep/parallel/device_communicator.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/data/loader.h"
#include "lockstep/host/memory.h"
#include "lockstep/models/loss.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/device.h"
#include "lockstep/train/engine.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/optimizer_state.h"
#include "lockstep/train/plan_parts.h"
#include "lockstep/train/weights.h"

namespace lockstep::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxBadSteps = 10;  // non-finite losses in a row before a run counts as diverged

std::int64_t steps_for(std::int64_t num_batches, const config::TrainPlan& plan) {
  return (num_batches + plan.accumulate - 1) / plan.accumulate;
}

std::uint64_t own_peak_memory_bytes() {
  const auto memory = host::process_memory();
  return memory ? memory->peak_resident_bytes : 0;
}

class Trainer {
 public:
  explicit Trainer(TrainerInputs inputs)
      : inputs_(std::move(inputs)),
        plan_(inputs_.plan),
        device_(prepare_device(plan_.device, device_index(plan_, inputs_.local_rank), inputs_.communicator->size())),
        device_communicator_(parallel::make_device_communicator(*inputs_.communicator, device_)),
        communicator_(device_communicator_ ? *device_communicator_ : *inputs_.communicator),
        loader_(inputs_.data.train, loader_options(plan_, communicator_)),
        steps_per_epoch_(steps_for(loader_.batches_per_epoch(), plan_)),
        checkpoint_(find_checkpoint(plan_)),
        total_steps_(planned_steps()) {
    set_precision(plan_);
    inputs_.model->to(device_, dtype_of(plan_));
    if (plan_.init_from) take_initial_weights();
    optimizer_ = make_optimizer(plan_, inputs_.model->parameters());
    strategy_ = make_strategy(plan_, communicator_);
    engine_.emplace(*inputs_.model, *optimizer_, *strategy_,
                    engine_options(plan_, communicator_, steps_per_epoch_, total_steps_));
    if (inputs_.status) engine_->report_to(std::move(*inputs_.status), inputs_.local_rank);
  }

  TrainOutcome run() {
    if (checkpoint_) resume();
    write_run_start();
    TrainExit exit = TrainExit::kCompleted;
    while (exit == TrainExit::kCompleted && !is_done()) exit = train_epoch();
    return finish(exit);
  }

 private:
  // A file that does not fit is a wrong argument here, not a damaged checkpoint.
  void take_initial_weights() {
    try {
      load_weights(*inputs_.model, *plan_.init_from);
    } catch (const Error& error) {
      throw ConfigError(text("--init-from ", error.what()));
    }
  }

  // Steps that fp16 skipped are not made up for: the epochs end the run then.
  bool is_done() const { return engine_->num_steps() >= total_steps_ || epoch_ >= plan_.epochs; }

  std::int64_t samples_per_batch() const { return plan_.batch_size * communicator_.size(); }

  // The run's last optimizer step, counted from its very beginning. The global batch may have changed at a resume, so
  // the steps behind us are those of the checkpoint and the epochs before us count at this run's batch.
  std::int64_t planned_steps() const {
    std::int64_t steps = plan_.epochs * steps_per_epoch_;
    if (checkpoint_) {
      const RunState& state = checkpoint_->state;
      check_resumable(plan_, state, communicator_.size(), inputs_.data.train->size());
      steps = state.step;
      if (state.epoch < plan_.epochs) {
        const std::int64_t batches_done = state.samples_in_epoch / samples_per_batch();
        steps += steps_for(loader_.batches_per_epoch() - batches_done, plan_);
        steps += (plan_.epochs - state.epoch - 1) * steps_per_epoch_;
      }
    }
    return std::min(steps, plan_.max_steps.value_or(INT64_MAX));
  }

  // One epoch, or what is left of it after a resume.
  TrainExit train_epoch() {
    const auto start = Clock::now();
    const std::int64_t first_batch = samples_in_epoch_ / samples_per_batch();
    double samples_here = 0;
    std::int64_t steps_here = 0;
    int in_window = 0;
    for (const auto& batch : loader_.epoch(epoch_, first_batch)) {
      poll_stop();
      const bool last = ++in_window == plan_.accumulate || batch.last;
      const auto input = batch.input.to(device_, /*non_blocking=*/true);
      const auto target = batch.target.to(device_, /*non_blocking=*/true);
      const auto result = engine_->micro_step(
          batch.size, last, [&] { return models::cross_entropy(inputs_.model->forward(input), target); });
      samples_in_epoch_ += batch.size * communicator_.size();
      if (!last) continue;
      in_window = 0;
      if (result.updated) ++steps_here;
      if (result.took_back) --steps_here;
      samples_here += result.samples;
      if (result.step >= total_steps_ || batch.last) engine_->settle();
      const bool at_end = engine_->num_steps() >= total_steps_ || (batch.last && epoch_ + 1 >= plan_.epochs);
      after_step(result, batch.last || at_end);
      if (batch.last || at_end) {
        is_stopping_ = result.stop && !at_end;
        finish_epoch(batch.last, steps_here, samples_here, Clock::now() - start);
      }
      if (result.stop && !at_end) return stop_here();
      if (at_end) break;
    }
    return TrainExit::kCompleted;
  }

  void after_step(const StepResult& result, bool ends_epoch) {
    // The loss scale is falling: that is how it finds its place, and it has a judge of its own.
    if (result.skipped) return;
    // The rank whose forward or backward threw ends the job; this one may come here before it hears of that.
    if (result.dropped) return;
    if (result.loss) check_finite(*result.loss, result.step);
    const bool log_this = result.step % plan_.log_every == 0 || result.step == 1;
    if (inputs_.events != nullptr && log_this) {
      inputs_.events->write("step", {{"step", result.step},
                                     {"epoch", epoch_ + 1},
                                     {"loss", result.loss.value_or(engine_->losses().mean())},
                                     {"lr", result.lr},
                                     {"samples", result.samples}});
    }
    if (plan_.save_steps > 0 && result.step % plan_.save_steps == 0 && !ends_epoch) save();
  }

  // `complete` is false when --max-steps ends the run inside the epoch: the position then stays where it is.
  void finish_epoch(bool complete, std::int64_t steps, double samples, Clock::duration spent) {
    const double train_loss = engine_->losses().mean();
    // Reading the loss waited for the device, so the time covers all of the epoch's work.
    const double seconds = std::chrono::duration<double>(spent).count();
    // On the CPU each step's loss was judged, and this mean leaves out those that are not finite.
    if (!device_.is_cpu()) check_finite(train_loss, engine_->num_steps());
    const std::int64_t number = epoch_ + 1;
    const bool at_end = engine_->num_steps() >= total_steps_ || (complete && number >= plan_.epochs) || is_stopping_;
    std::optional<EvaluationResult> evaluation;
    if (plan_.eval_every > 0 && (number % plan_.eval_every == 0 || at_end)) evaluation = evaluate_now();
    const auto memory = peak_memory();
    if (inputs_.events != nullptr) {
      nlohmann::json fields{{"epoch", number},
                            {"steps", steps},
                            {"train_loss", train_loss},
                            {"eval_loss", nullptr},
                            {"eval_accuracy", nullptr},
                            {"eval_correct", nullptr},
                            {"eval_total", nullptr},
                            {"seconds", seconds},
                            {"images_per_second", samples / seconds},
                            {"peak_memory_bytes", memory}};
      if (evaluation) {
        fields["eval_loss"] = evaluation->loss;
        fields["eval_accuracy"] = evaluation->accuracy;
        fields["eval_correct"] = evaluation->correct;
        fields["eval_total"] = evaluation->samples;
      }
      inputs_.events->write("epoch", std::move(fields));
    }
    if (complete) {
      epoch_ = number;
      samples_in_epoch_ = 0;
      engine_->losses().reset();
    }
    if (saves_after(number, at_end) && !is_stopping_) save();
  }

  // With any of the two flags the last state is saved too.
  bool saves_after(std::int64_t epoch_number, bool at_end) const {
    const bool by_epoch = plan_.save_every > 0 && epoch_number % plan_.save_every == 0;
    const bool by_step = plan_.save_steps > 0 && engine_->num_steps() % plan_.save_steps == 0;
    return by_epoch || by_step || (at_end && (plan_.save_every > 0 || plan_.save_steps > 0));
  }

  TrainExit stop_here() {
    engine_->settle();
    save();
    return TrainExit::kStopped;
  }

  // A run may end in fewer bad steps than it takes to give up.
  void refuse_spoilt_weights() {
    if (weights_are_finite()) return;
    if (bad_steps_ == 0) first_bad_step_ = engine_->num_steps();
    fail_diverged(text("the final weights are not finite, spoilt at step ", first_bad_step_));
  }

  TrainOutcome finish(TrainExit exit) {
    if (exit == TrainExit::kCompleted) refuse_spoilt_weights();
    TrainOutcome outcome{exit, engine_->num_steps(), agreed_sha256()};
    if (communicator_.rank() == 0 && plan_.dump_final && exit == TrainExit::kCompleted) {
      save_tensors(*plan_.dump_final, state_tensors(*inputs_.model));
    }
    if (inputs_.events != nullptr) {
      write_statistics();
      inputs_.events->write("run_end", {{"exit", exit == TrainExit::kCompleted ? "completed" : "stopped"},
                                        {"steps", outcome.steps},
                                        {"final_weights_sha256", outcome.weights_sha256}});
    }
    return outcome;
  }

  // Rank 0's view of where its steps' time went and what was sent.
  void write_statistics() {
    const auto& times = engine_->times();
    if (times.steps == 0) return;
    const auto exchange = strategy_->statistics();
    const auto microseconds = [&](std::chrono::nanoseconds total) {
      return std::chrono::duration<double, std::micro>(total).count() / static_cast<double>(times.steps);
    };
    auto buckets = nlohmann::json::array();
    for (const auto& bucket : exchange.buckets) {
      buckets.push_back({{"bytes", bucket.bytes}, {"parameters", bucket.parameters}});
    }
    inputs_.events->write("statistics", {{"steps", times.steps},
                                         {"forward_us", microseconds(times.forward)},
                                         {"backward_us", microseconds(times.backward)},
                                         {"exchange_overlapped_us", microseconds(exchange.in_backward)},
                                         {"exchange_exposed_us", microseconds(times.exchange)},
                                         {"update_us", microseconds(times.update)},
                                         {"gradient_bytes", exchange.bytes / times.steps},
                                         {"buckets", std::move(buckets)}});
  }

  EvaluationResult evaluate_now() {
    torch::NoGradGuard no_grad;
    inputs_.model->eval();
    auto loader = data::Loader::for_evaluation(inputs_.data.eval, eval_loader_options(plan_, communicator_));
    const auto autocast = amp::autocast_type(precision_of(plan_));
    const auto forward = [&](const at::Tensor& input) {
      std::optional<amp::AutocastScope> scope;
      if (autocast) scope.emplace(device_.type(), *autocast);
      return inputs_.model->forward(input.to(device_));
    };
    const auto result = evaluate(loader, forward, communicator_);
    inputs_.model->train();
    return result;
  }

  void poll_stop() {
    const bool out_of_time = plan_.stop_after && Clock::now() - started_ >= *plan_.stop_after;
    if (out_of_time || (inputs_.stop_requested && inputs_.stop_requested())) engine_->request_stop();
  }

  void check_finite(double loss, std::int64_t step) {
    if (std::isfinite(loss)) {
      bad_steps_ = 0;
      return;
    }
    if (++bad_steps_ == 1) first_bad_step_ = step;
    const bool from_epoch = !device_.is_cpu();  // there, losses are read once an epoch
    if (!plan_.strict_nan && !from_epoch && bad_steps_ < kMaxBadSteps) return;
    fail_diverged(text("the loss is ", std::isnan(loss) ? "nan" : text(loss), " since step ", first_bad_step_));
  }

  // An update can spoil the weights before a loss shows it. All ranks have the same ones.
  bool weights_are_finite() {
    const auto& buffers = engine_->arena().buffers();
    return std::all_of(buffers.begin(), buffers.end(),
                       [](const auto& buffer) { return at::isfinite(buffer.values).all().template item<bool>(); });
  }

  [[noreturn]] void fail_diverged(const std::string& what) {
    const std::string message = text("training diverged: ", what);
    if (inputs_.events != nullptr) {
      inputs_.events->write(
          "fault",
          {{"kind", "diverged"}, {"message", message}, {"step", first_bad_step_}, {"rank", communicator_.rank()}});
    }
    throw Error(message, text("try a smaller --lr (now ", plan_.scaled_lr(),
                              "), --warmup-epochs or --clip-norm; saved checkpoints are untouched"));
  }

  void resume() {
    const auto& state = checkpoint_->state;
    copy_by_name(state_tensors(*inputs_.model), checkpoint_->model, "checkpoint, model");
    engine_->fix_layout(state.layout);
    engine_->set_num_steps(state.step);
    load_optimizer_state(*optimizer_, engine_->arena(), checkpoint_->optimizer, "checkpoint, optimizer");
    if (engine_->scaler() && state.loss_scale) engine_->scaler()->load(*state.loss_scale);
    engine_->losses().reset(state.epoch_loss_sum, state.epoch_loss_samples);
    epoch_ = state.epoch;
    samples_in_epoch_ = state.samples_in_epoch;
    resumed_from_step_ = state.step;
    const auto rank = static_cast<std::size_t>(communicator_.rank());
    if (rank < checkpoint_->random_states.size()) {
      at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
      generator.set_state(checkpoint_->random_states[rank]);
    }
    checkpoint_.reset();
  }

  void save() {
    // Such weights would push out the last good checkpoint. All ranks see the same loss.
    engine_->settle();
    if (bad_steps_ > 0 || !weights_are_finite()) return;
    auto random_states = gather_random_states(communicator_);
    auto optimizer_state = gather_optimizer_state(*optimizer_, engine_->arena(), communicator_);
    if (communicator_.rank() == 0) save_on_rank_zero(std::move(random_states), std::move(optimizer_state));
    communicator_.barrier();
  }

  void save_on_rank_zero(std::vector<at::Tensor> random_states, std::vector<optim::NamedTensor> optimizer_state) {
    const auto start = Clock::now();
    Checkpoint checkpoint;
    checkpoint.state = {.step = engine_->num_steps(),
                        .epoch = epoch_,
                        .samples_in_epoch = samples_in_epoch_,
                        .epoch_loss_sum = engine_->losses().sum(),
                        .epoch_loss_samples = engine_->losses().samples(),
                        .model = plan_.model,
                        .data = plan_.data,
                        .optimizer = plan_.optimizer,
                        .precision = plan_.precision,
                        .seed = plan_.seed,
                        .dataset_size = inputs_.data.train->size(),
                        .world_size = communicator_.size(),
                        .global_batch = plan_.global_batch()};
    checkpoint.model = state_tensors(*inputs_.model);
    checkpoint.state.layout = parallel::layout_names(engine_->arena());
    if (engine_->scaler()) checkpoint.state.loss_scale = engine_->scaler()->state();
    checkpoint.optimizer = std::move(optimizer_state);
    checkpoint.random_states = std::move(random_states);
    const auto saved = save_checkpoint(plan_.run_dir / "checkpoints", checkpoint, plan_.keep);
    inputs_.events->write("checkpoint", {{"step", checkpoint.state.step},
                                         {"path", saved.path.string()},
                                         {"seconds", std::chrono::duration<double>(Clock::now() - start).count()},
                                         {"bytes", saved.size_bytes}});
  }

  std::string agreed_sha256() {
    const std::string mine = tensors_sha256(state_tensors(*inputs_.model));
    const auto size = static_cast<std::size_t>(communicator_.size());
    std::string all(mine.size() * size, '\0');
    communicator_.all_gather({mine.data(), mine.size(), comm::Dtype::kU8}, {all.data(), all.size(), comm::Dtype::kU8})
        .wait();
    for (std::size_t rank = 0; rank < size; ++rank) {
      if (all.compare(rank * mine.size(), mine.size(), all, 0, mine.size()) == 0) continue;
      throw Error(text("the weights of rank ", rank, " differ from rank 0's at the end of training"));
    }
    return mine;
  }

  std::vector<std::uint64_t> peak_memory() {
    const auto size = static_cast<std::size_t>(communicator_.size());
    const auto mine =
        static_cast<std::int64_t>(device_.is_cuda() ? device_peak_memory_bytes(device_) : own_peak_memory_bytes());
    std::vector<std::int64_t> all(size);
    communicator_.all_gather({&mine, 1, comm::Dtype::kI64}, {all.data(), size, comm::Dtype::kI64}).wait();
    // Threads of one process share its memory, but each has a GPU of its own.
    const auto processes = device_.is_cuda() ? size : size / static_cast<std::size_t>(inputs_.ranks_in_process);
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(processes)};
  }

  void write_run_start() {
    if (inputs_.events == nullptr) return;
    nlohmann::json fields{
        {"strategy", plan_.strategy},          {"world_size", communicator_.size()},   {"device", device_.str()},
        {"backend", communicator_.backend()},  {"global_batch", plan_.global_batch()}, {"lr", plan_.scaled_lr()},
        {"steps_per_epoch", steps_per_epoch_}, {"total_steps", total_steps_},          {"resumed_from_step", nullptr}};
    if (resumed_from_step_) fields["resumed_from_step"] = *resumed_from_step_;
    inputs_.events->write("run_start", std::move(fields));
  }

  TrainerInputs inputs_;
  const config::TrainPlan& plan_;
  const at::Device device_;
  const std::unique_ptr<comm::Communicator> device_communicator_;  // null on the CPU
  comm::Communicator& communicator_;
  data::Loader loader_;
  const std::int64_t steps_per_epoch_;
  std::optional<Checkpoint> checkpoint_;  // until it has been taken over
  const std::int64_t total_steps_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<parallel::Strategy> strategy_;
  std::optional<Engine> engine_;

  const Clock::time_point started_ = Clock::now();
  std::int64_t epoch_ = 0;
  std::int64_t samples_in_epoch_ = 0;
  std::optional<std::int64_t> resumed_from_step_;
  int bad_steps_ = 0;
  std::int64_t first_bad_step_ = 0;
  bool is_stopping_ = false;
};

}  // namespace

TrainOutcome train(TrainerInputs inputs) {
  return Trainer(std::move(inputs)).run();
}

}  // namespace lockstep::train
