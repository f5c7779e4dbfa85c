#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/engine.h"
#include "lockstep/train/evaluate.h"

namespace lockstep {

using amp::Precision;
using parallel::Sharding;

/// Options of one engine. Unset means: the mean over samples, no clipping, the optimizer's constant rate, fp32.
struct EngineOptions {
  int accumulate = 1;  ///< micro-batches, that is calls of step(), an update
  train::Average average = train::Average::kSamples;
  std::optional<double> clip_norm = std::nullopt;
  std::optional<double> clip_value = std::nullopt;
  std::optional<optim::Schedule> schedule = std::nullopt;
  train::JoinDivisor join_divisor = train::JoinDivisor::kActive;  ///< see Engine::join()
  Precision precision = Precision::kFp32;                         ///< kBf16 and kFp16 run forward under autocast
  amp::GradScalerOptions scaler = {};                             ///< with kFp16
  train::Decisions decisions = train::Decisions::kAuto;           ///< on clipping and on what overflowed
  bool sync_batch_norm = false;                                   ///< batch normalisation over all ranks' samples
  Sharding sharding = Sharding::kNone;
  parallel::DdpOptions exchange = {};  ///< buckets, unused parameters, module buffers, a communication hook
};

struct LoaderOptions {
  std::int64_t batch_size = 32;  ///< per rank
  bool shuffle = true;
  bool drop_last = false;
  int workers = 1;  ///< threads that prepare batches ahead; 0 prepares them in place
};

namespace api {
class RankContext;
}

/// Trains one model. Made by Session::engine(); the model and the optimizer outlive it. One thread.
class Engine {
 public:
  using Result = train::StepResult;

  /// One micro-batch: `loss` gets the batch's input and target on this rank's device and returns the mean loss.
  /// Every `accumulate` calls, and at the last batch of an epoch, the weights are updated: then result.updated is true.
  /// Once a stop was asked for (SIGTERM, Ctrl-C) the update says so in result.stop, on all ranks at the same step; a
  /// further call throws Stopped, which lockstep::main turns into the exit code.
  /// What `loss` or backward throws, this throws on; no rank makes that update, and all may go on: result.dropped.
  template <typename Loss>
  Result step(const data::Batch& batch, Loss&& loss) {
    auto [input, target] = on_device(batch);
    return micro_step(batch.size, batch.last, [&] { return loss(input, target); });
  }

  /// The same for data of the program's own: `samples` in this micro-batch, `last` ends the accumulation window early.
  Result micro_step(std::int64_t samples, bool last, const train::Engine::LossFunction& loss);

  /// For ranks with different numbers of batches: a rank without further ones takes part in the others' updates until
  /// all have joined. Every rank calls it once, after its last step(). Returns the updates made here. [all ranks]
  std::int64_t join();

  /// On a GPU with fp16 the host hears of a skipped update late: after this num_steps() and loss_scale() are exact.
  /// [all ranks]
  void settle();
  /// With kFp16.
  std::optional<double> loss_scale() const;

  /// Optimizer steps done.
  std::int64_t num_steps() const;

  Engine(Engine&&) noexcept;
  ~Engine();

 private:
  friend class Session;
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::pair<at::Tensor, at::Tensor> on_device(const data::Batch& batch) const;
  std::unique_ptr<Impl> impl_;
};

/// Thrown by Engine when training goes on after an agreed stop.
class Stopped : public std::exception {
 public:
  const char* what() const noexcept override { return "stopped on request"; }
};

/// What a rank of the job has: who it is, its device, and the parts that are bound to both. Made by lockstep::main.
/// Calls marked [all ranks] must be made by every rank in the same order.
class Session {
 public:
  explicit Session(api::RankContext& context);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const;
  int size() const;
  bool is_main() const { return rank() == 0; }
  at::Device device() const;
  /// The command line without what lockstep::main took; [0] is the program.
  const std::vector<std::string>& arguments() const;
  /// Rank 0's line on standard output; nothing on the others.
  void print(std::string_view line) const;

  /// Moves a module to this rank's device and gives it rank 0's weights and buffers. [all ranks]
  template <typename Module>
  auto place(Module&& module) {
    using Plain = std::remove_cvref_t<Module>;
    if constexpr (requires { module->parameters(); }) {  // a shared_ptr or a ModuleHolder
      place_module(*module);
      return Plain(std::forward<Module>(module));
    } else {
      auto placed = std::make_shared<Plain>(std::forward<Module>(module));
      place_module(*placed);
      return placed;
    }
  }

  /// Binds model and optimizer for training. [all ranks]
  template <typename Module>
  Engine engine(Module& model, optim::Optimizer& optimizer, EngineOptions options = {}) {
    return make_engine(*model, optimizer, options);
  }

  /// This rank's share of a data set, in the order of Python's DistributedSampler.
  data::Loader loader(std::shared_ptr<const data::ImageDataset> dataset, LoaderOptions options = {});

  /// `lr` by the linear rule: lr * (batch_size * size() * accumulate) / 256 (Goyal et al. 2017).
  double scaled_lr(double lr, std::int64_t batch_size, int accumulate = 1) const;

  /// 0 .. n-1.
  auto epochs(std::int64_t n) const { return std::views::iota(std::int64_t{0}, n); }

  /// Exact evaluation with cross entropy: every sample counts once, whatever the number of ranks. [all ranks]
  template <typename Module>
  train::EvaluationResult evaluate(Module& model, std::shared_ptr<const data::ImageDataset> dataset) {
    model->eval();
    auto result = evaluate_with(std::move(dataset), [&](const at::Tensor& input) { return model->forward(input); });
    model->train();
    return result;
  }

  /// Sum over all ranks. [all ranks]
  double sum(double value);
  /// Every rank's value, in rank order. [all ranks]
  std::vector<double> gather(double value);
  void barrier();  ///< [all ranks]

 private:
  void place_module(torch::nn::Module& module);
  Engine make_engine(torch::nn::Module& model, optim::Optimizer& optimizer, const EngineOptions& options);
  train::EvaluationResult evaluate_with(std::shared_ptr<const data::ImageDataset> dataset,
                                        const std::function<at::Tensor(const at::Tensor&)>& forward);
  api::RankContext& context_;
};

}  // namespace lockstep
