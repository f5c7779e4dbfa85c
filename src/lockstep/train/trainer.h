#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/rank_status.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/config/train_plan.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/models/model.h"
#include "lockstep/telemetry/events.h"

namespace lockstep::train {

/// What one rank of `lockstep train` works with. Borrowed pointers outlive the call.
struct TrainerInputs {
  config::TrainPlan plan;
  data::DatasetPair data;                ///< may be shared by ranks that are threads
  std::shared_ptr<models::Model> model;  ///< initial values depend on seed and model only
  comm::Communicator* communicator = nullptr;
  telemetry::EventWriter* events = nullptr;  ///< rank 0 only
  std::optional<StatusBoard> status;
  int local_rank = 0;
  std::function<bool()> stop_requested;  ///< polled once a step, from the training thread
  int ranks_in_process = 1;              ///< dp: threads that share this process's memory
};

enum class TrainExit { kCompleted, kStopped };

struct TrainOutcome {
  TrainExit exit = TrainExit::kCompleted;
  std::int64_t steps = 0;
  std::string weights_sha256;
};

/// Trains as planned: epochs of steps, evaluation, checkpoints, events. All ranks call it. Throws lockstep::Error:
/// DataError and ConfigError before the first step, CommError when a peer is lost, Error (exit code 1) on divergence.
TrainOutcome train(TrainerInputs inputs);

}  // namespace lockstep::train
