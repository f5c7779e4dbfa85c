#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/config/train_plan.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/engine.h"

namespace lockstep::train {

/// A plan's words turned into the options of the parts.
at::ScalarType dtype_of(const config::TrainPlan& plan);
data::LoaderOptions loader_options(const config::TrainPlan& plan, const comm::Communicator& communicator);
data::LoaderOptions eval_loader_options(const config::TrainPlan& plan, const comm::Communicator& communicator);
std::unique_ptr<optim::Optimizer> make_optimizer(const config::TrainPlan& plan, std::vector<at::Tensor> parameters);
std::unique_ptr<parallel::Strategy> make_strategy(const config::TrainPlan& plan, comm::Communicator& communicator);
amp::Precision precision_of(const config::TrainPlan& plan);
EngineOptions engine_options(const config::TrainPlan& plan, comm::Communicator& communicator,
                             std::int64_t steps_per_epoch, std::int64_t total_steps);

/// Which of the visible GPUs belongs to the process with this LOCAL_RANK: the one that --devices names for it, else the
/// one of that number. The rank in the whole job has no say.
int device_index(const config::TrainPlan& plan, int local_rank);

/// TF32 flags of CUDA, and deterministic algorithms.
void set_precision(const config::TrainPlan& plan);

/// The checkpoint that the plan resumes from; nullopt when it starts afresh. Throws CheckpointError.
std::optional<Checkpoint> find_checkpoint(const config::TrainPlan& plan);

/// Throws CheckpointError when the run cannot go on from `state` under this plan, naming what differs.
void check_resumable(const config::TrainPlan& plan, const RunState& state, int world_size, std::int64_t dataset_size);

/// The CPU generator's state of every rank, on every rank. A collective.
std::vector<at::Tensor> gather_random_states(comm::Communicator& communicator);

/// Most bytes that tensors have held on a CUDA device since the start.
std::uint64_t device_peak_memory_bytes(at::Device device);

}  // namespace lockstep::train
