#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/device_scaler.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/base/rank_status.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/loss_meter.h"

namespace lockstep::train {

enum class Average {
  kSamples,  ///< the gradient is the mean over all samples of the step, however they are spread
  kRanks,    ///< mean of the micro-batches' means, as Python's DistributedDataParallel with a loss divided by K
};

/// What the gradient is divided by when some ranks have run out of data, with Average::kRanks.
enum class JoinDivisor {
  kActive,  ///< the micro-batches that there were
  kWorld,   ///< as if every rank had brought its share, as Python's join(divide_by_initial_world_size=True)
};

/// Where it is decided by how much a gradient is clipped and whether an fp16 update overflowed.
enum class Decisions {
  kAuto,      ///< on the device of a CUDA model when the optimizer can, else on the host
  kOnHost,    ///< the step waits for the device; StepResult tells at once
  kOnDevice,  ///< nothing waits; a skipped update is told amp::DeviceScaler::kLag updates later
};

struct EngineOptions {
  Average average = Average::kSamples;
  JoinDivisor join_divisor = JoinDivisor::kActive;
  std::optional<double> clip_norm = std::nullopt;          ///< of the averaged gradient, over all parameters
  std::optional<double> clip_value = std::nullopt;         ///< of each element of the averaged gradient
  std::optional<optim::Schedule> schedule = std::nullopt;  ///< default: the optimizer's rate, constant
  /// kBf16 and kFp16 run forward under autocast. The others say what the model was made in and change nothing here.
  amp::Precision precision = amp::Precision::kFp32;
  amp::GradScalerOptions scaler = {};  ///< with kFp16
  Decisions decisions = Decisions::kAuto;
  /// Borrowed: batch normalisation takes its statistics over these ranks. It may be the strategy's communicator.
  comm::Communicator* sync_batch_norm = nullptr;
};

/// What is known after a micro-batch; `updated` says whether it ended an optimizer step.
struct StepResult {
  bool updated = false;
  bool skipped = false;  ///< it ended a step whose fp16 gradients overflowed: nothing moved, the loss scale fell
  /// It ended a step in which some rank's forward or backward threw: nothing moved, on any rank.
  bool dropped = false;
  int failed_rank = -1;    ///< with `dropped`: the rank, when one alone failed
  bool took_back = false;  ///< with Decisions::kOnDevice: an earlier update turned out to have been skipped
  std::int64_t step = 0;   ///< optimizer steps done so far
  double lr = 0;           ///< of this update
  double samples = 0;      ///< of all ranks in this update
  std::optional<double> loss =
      std::nullopt;   ///< mean over them; on CUDA not read, so that nothing waits for the device
  bool stop = false;  ///< some rank was asked to stop: all ranks see it at the same step
};

/// Where the time of this rank's steps has gone. On CUDA these are the times of queueing the work, not of doing it.
struct StepTimes {
  std::int64_t steps = 0;
  std::chrono::nanoseconds forward{0}, backward{0};  ///< backward with the sending that overlaps it
  std::chrono::nanoseconds exchange{0};              ///< waiting for gradients after backward
  std::chrono::nanoseconds update{0};                ///< clipping, optimizer, sending values and module buffers
};

/// The training step: forward, backward with the strategy's exchange under it, clip, optimizer, schedule.
///
/// It owns the flat arena that the model's parameters become views of. One engine a model; the model, the optimizer and
/// the strategy are borrowed and outlive it. All ranks make an engine, and step it, in the same order. One thread.
class Engine {
 public:
  /// Returns the mean loss of a micro-batch, with a graph behind it.
  using LossFunction = std::function<at::Tensor()>;

  /// Binds everything and makes all ranks' weights equal. Throws ConfigError when the optimizer holds a tensor that is
  /// no parameter of the model, CommError when the ranks' models differ.
  Engine(torch::nn::Module& model, optim::Optimizer& optimizer, parallel::Strategy& strategy, EngineOptions options);

  /// One micro-batch of `samples` samples; `last` ends the accumulation window and updates the weights.
  ///
  /// When `loss_function` or backward throws (out of memory, say), this rank still takes part in what the others wait
  /// for, and throws on: every rank drops the update of that window, gradients and counts unchanged, and a program that
  /// catches the exception goes on with its next micro-batch. Throws ConfigError for an empty batch: see join().
  StepResult micro_step(std::int64_t samples, bool last, const LossFunction& loss_function);

  /// For ranks with different numbers of batches: a rank that has no more calls this once, in place of micro_step(),
  /// and takes part in the others' updates with nothing of its own until every rank has joined. With the default
  /// average the divisor is the samples that there were; see JoinDivisor for the other. Micro-batches that have not yet
  /// led to an update do so first. Returns the updates made here. Throws ConfigError under zero2 with accumulation,
  /// whose ranks exchange gradients in every micro-batch.
  /// The model's forward must not need the other ranks (SyncBatchNorm does).
  std::int64_t join();

  /// Asks for a stop: travels with the next update, so that all ranks stop after the same step.
  void request_stop() noexcept { stop_requested_ = true; }

  const StepTimes& times() const noexcept { return times_; }
  std::int64_t num_steps() const noexcept { return num_steps_; }
  void set_num_steps(std::int64_t num_steps);

  optim::ParameterArena& arena() noexcept { return arena_; }
  /// Its state has a place only from the first update on, or after fix_layout().
  optim::Optimizer& optimizer() noexcept { return optimizer_; }
  parallel::Strategy& strategy() noexcept { return strategy_; }
  /// With kFp16.
  std::optional<amp::GradScaler>& scaler() noexcept { return scaler_; }
  /// For a run that is resumed: puts the arena into the saved layout (or keeps the present one, when empty) and gives
  /// the optimizer its state, to be filled. [all ranks]
  void fix_layout(const std::vector<std::string>& names);
  LossMeter& losses() noexcept { return losses_; }
  /// Norm of the last update's averaged gradient before clipping; only with clip_norm. On CUDA it waits for the device.
  std::optional<double> last_gradient_norm() const;
  /// Hears of all updates made so far: num_steps() and scaler() are then exact. Waits for the device. [all ranks]
  void settle();
  /// Called after the exchange and clipping, before the optimizer: gradients are sums, to be multiplied by the scale;
  /// `unused` as in StepSums.
  using GradientObserver = std::function<void(double gradient_scale, const std::vector<char>& unused)>;
  void set_gradient_observer(GradientObserver observer) { observer_ = std::move(observer); }

  /// Shows this rank's progress to the launcher.
  void report_to(StatusBoard board, int local_rank);

 private:
  double weight_of(double samples);
  at::Tensor forward(const LossFunction& loss_function, at::DeviceType device_type);
  void backward(const at::Tensor& loss, double weight);
  void open_window();
  StepResult run_micro_step(std::int64_t samples, bool last, const LossFunction& loss_function);
  void fail_micro_step(std::int64_t samples, bool last);
  void drop(const parallel::StepSums& sums, StepResult& result);
  parallel::StepSums exchange();
  bool decides_on_device() const;
  double loss_scale_to_compare() const;
  bool overflowed();
  double clip(double gradient_scale);
  void update(const parallel::StepSums& sums, StepResult& result);
  void update_on_host(const parallel::StepSums& sums, StepResult& result);
  void update_on_device(const parallel::StepSums& sums, StepResult& result);
  at::Tensor rate_on_device() const;
  void hear_of_update(StepResult& result);

  parallel::Strategy& strategy_;
  optim::Optimizer& optimizer_;
  const EngineOptions options_;
  optim::ParameterArena arena_;
  optim::Schedule schedule_;
  std::optional<amp::GradScaler> scaler_;
  std::unique_ptr<amp::DeviceScaler> device_scaler_;  // with a scaler, when decisions fall on the device
  std::deque<std::vector<char>> pending_unused_;      // of the updates that it has not told of
  parallel::StepSums window_;                         // this rank's share of the step under way
  bool window_is_open_ = false;
  bool backward_has_begun_ = false;  // in this micro-step
  bool has_accumulated_ = false;     // some step had several micro-batches
  double last_count_ = 0;            // of the last window that had data
  double weight_unit_ = 0;           // Note [Weights and fp16]; 0: not agreed on yet
  LossMeter losses_;
  at::Tensor backward_weight_;  // the scalar that backward starts from, kept while the batch size stays
  double backward_weight_value_ = 0;
  std::int64_t num_steps_ = 0;
  StepTimes times_;
  bool stop_requested_ = false;
  at::Tensor last_gradient_norm_;  // [] on the CPU or the arena's device
  GradientObserver observer_;
  std::optional<StatusBoard> status_;
  int local_rank_ = 0;
};

}  // namespace lockstep::train
