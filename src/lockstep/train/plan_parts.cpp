#include "lockstep/train/plan_parts.h"

#include <cmath>

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/zero.h"

namespace lockstep::train {

int device_index(const config::TrainPlan& plan, int local_rank) {
  const auto rank = static_cast<std::size_t>(local_rank);
  return rank < plan.devices.size() ? plan.devices[rank] : local_rank;
}

at::ScalarType dtype_of(const config::TrainPlan& plan) {
  return plan.precision == "fp64" ? at::kDouble : at::kFloat;
}

data::LoaderOptions loader_options(const config::TrainPlan& plan, const comm::Communicator& communicator) {
  return {.batch_size = plan.batch_size,
          .num_replicas = communicator.size(),
          .rank = communicator.rank(),
          .seed = plan.seed,
          .drop_last = plan.drop_last,
          .workers = plan.workers,
          .dtype = dtype_of(plan)};
}

data::LoaderOptions eval_loader_options(const config::TrainPlan& plan, const comm::Communicator& communicator) {
  constexpr std::int64_t kEvalBatch = 256;
  return {.batch_size = kEvalBatch,
          .num_replicas = communicator.size(),
          .rank = communicator.rank(),
          .workers = plan.workers,
          .dtype = dtype_of(plan)};
}

std::unique_ptr<optim::Optimizer> make_optimizer(const config::TrainPlan& plan, std::vector<at::Tensor> parameters) {
  if (plan.optimizer == "sgd") {
    return std::make_unique<optim::SGD>(std::move(parameters), optim::SgdOptions{.lr = plan.scaled_lr(),
                                                                                 .momentum = plan.momentum,
                                                                                 .weight_decay = plan.weight_decay,
                                                                                 .nesterov = plan.nesterov});
  }
  const optim::AdamOptions options{.lr = plan.scaled_lr(), .weight_decay = plan.weight_decay};
  if (plan.optimizer == "adam") return std::make_unique<optim::Adam>(std::move(parameters), options);
  if (plan.optimizer == "adamw") return std::make_unique<optim::AdamW>(std::move(parameters), options);
  throw ConfigError(text("optimizer '", plan.optimizer, "': expected sgd, adam or adamw"));
}

std::unique_ptr<parallel::Strategy> make_strategy(const config::TrainPlan& plan, comm::Communicator& communicator) {
  auto sharding = parallel::Sharding::kNone;  // ddp, and dp: its ranks are threads
  if (plan.strategy == "zero1") sharding = parallel::Sharding::kOptimizer;
  if (plan.strategy == "zero2") sharding = parallel::Sharding::kGradients;
  return parallel::make_strategy(communicator, sharding, {});
}

amp::Precision precision_of(const config::TrainPlan& plan) {
  if (plan.precision == "fp64") return amp::Precision::kFp64;
  if (plan.precision == "tf32") return amp::Precision::kTf32;
  if (plan.precision == "bf16") return amp::Precision::kBf16;
  if (plan.precision == "fp16") return amp::Precision::kFp16;
  return amp::Precision::kFp32;
}

EngineOptions engine_options(const config::TrainPlan& plan, comm::Communicator& communicator,
                             std::int64_t steps_per_epoch, std::int64_t total_steps) {
  optim::Schedule schedule{.base_lr = plan.scaled_lr(),
                           .warmup_steps = std::llround(plan.warmup_epochs * static_cast<double>(steps_per_epoch)),
                           .total_steps = total_steps};
  if (plan.schedule == "cosine") schedule.kind = optim::ScheduleKind::kCosine;
  if (plan.schedule == "step") schedule.kind = optim::ScheduleKind::kStep;
  return {.average = plan.average == "ranks" ? Average::kRanks : Average::kSamples,
          .clip_norm = plan.clip_norm,
          .schedule = schedule,
          .precision = precision_of(plan),
          .sync_batch_norm = plan.sync_bn && communicator.size() > 1 ? &communicator : nullptr};
}

void set_precision(const config::TrainPlan& plan) {
  auto& context = at::globalContext();
  const bool allow_tf32 = plan.precision == "tf32";
  context.setAllowTF32CuBLAS(allow_tf32);
  context.setAllowTF32CuDNN(allow_tf32);
  context.setBenchmarkCuDNN(!plan.deterministic);
  context.setDeterministicCuDNN(plan.deterministic);
  if (plan.deterministic) context.setDeterministicAlgorithms(true, /*warn_only=*/false);
}

std::optional<Checkpoint> find_checkpoint(const config::TrainPlan& plan) {
  if (plan.resume == "none") return std::nullopt;
  if (plan.resume == "auto") return load_newest_checkpoint(plan.run_dir / "checkpoints");
  return load_checkpoint(plan.resume);
}

void check_resumable(const config::TrainPlan& plan, const RunState& state, int world_size, std::int64_t dataset_size) {
  const auto refuse = [](std::string_view what, std::string_view saved, std::string_view planned) {
    throw CheckpointError(text("the checkpoint was trained with ", what, " ", saved, ", this run asks for ", planned),
                          "resume with the same setting, or start afresh with --resume none --overwrite");
  };
  if (state.model != plan.model) refuse("--model", state.model, plan.model);
  if (state.optimizer != plan.optimizer) refuse("--optimizer", state.optimizer, plan.optimizer);
  if (state.precision != plan.precision) refuse("--precision", state.precision, plan.precision);
  if (state.seed != plan.seed) refuse("--seed", text(state.seed), text(plan.seed));
  // The folder may have moved; another number of samples is another order, in which the position means nothing.
  if (state.dataset_size != dataset_size) {
    refuse("--data", text(state.data, " (", state.dataset_size, " samples)"), text(plan.data, " (", dataset_size, ")"));
  }
  if (state.samples_in_epoch % (plan.batch_size * world_size) != 0) {
    throw CheckpointError(
        text("the checkpoint stands after ", state.samples_in_epoch, " samples of epoch ", state.epoch + 1,
             ", which is no whole number of batches of ", plan.batch_size, " on ", world_size, " ranks"),
        text("resume with the global batch it was saved with, ", state.global_batch));
  }
}

std::vector<at::Tensor> gather_random_states(comm::Communicator& communicator) {
  const auto mine = at::globalContext().defaultGenerator(at::kCPU).get_state().contiguous();
  const auto size = communicator.size();
  const auto length = mine.numel();
  auto all = at::empty({size, length}, at::kByte);
  communicator
      .all_gather({mine.const_data_ptr(), static_cast<std::size_t>(length), comm::Dtype::kU8},
                  {all.mutable_data_ptr(), static_cast<std::size_t>(size * length), comm::Dtype::kU8})
      .wait();
  return at::unbind(all);
}

std::uint64_t device_peak_memory_bytes(at::Device device) {
  auto* allocator = at::getDeviceAllocator(device.type());
  const auto stats = allocator->getDeviceStats(device.index());
  return static_cast<std::uint64_t>(
      stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak);
}

}  // namespace lockstep::train
