#include <mutex>
#include <optional>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/api/rank_threads.h"
#include "lockstep/api/stop_signals.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/rank_status.h"
#include "lockstep/base/text.h"
#include "lockstep/base/world.h"
#include "lockstep/c10d/rendezvous.h"
#include "lockstep/config/train_plan.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/formats/json_error.h"
#include "lockstep/models/model.h"
#include "lockstep/telemetry/events.h"
#include "lockstep/train/device.h"
#include "lockstep/train/trainer.h"
#include "lockstep/worker/commands.h"

namespace lockstep::worker {

namespace {

config::TrainPlan read_plan(const std::filesystem::path& plan_file) {
  try {
    return config::train_plan_from_json(nlohmann::json::parse(read_file(plan_file)));
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(text(plan_file.string(), ": ", formats::describe(error)));
  }
}

std::shared_ptr<models::Model> seeded_model(const config::TrainPlan& plan, const data::ImageDataset& dataset) {
  torch::manual_seed(plan.seed);
  return models::make_model(plan.model, {dataset.channels(), dataset.height(), dataset.width(), dataset.num_classes},
                            {.fuse = plan.fuse != "off", .channels_last = plan.device == "cuda"});
}

train::TrainerInputs common_inputs(const config::TrainPlan& plan, const data::DatasetPair& data,
                                   const api::StopSignals& signals) {
  train::TrainerInputs inputs;
  inputs.plan = plan;
  inputs.data = data;
  inputs.stop_requested = [&signals] { return signals.signal().load(std::memory_order_relaxed) != 0; };
  return inputs;
}

// Replicas draw their weights from one process-wide generator: they are made one after the other, before the threads.
void train_in_threads(const config::TrainPlan& plan, const data::DatasetPair& data, telemetry::EventWriter& events) {
  const api::StopSignals signals;
  std::vector<std::shared_ptr<models::Model>> replicas;
  for (int rank = 0; rank < plan.nproc; ++rank) replicas.push_back(seeded_model(plan, *data.train));
  api::run_rank_threads(plan.nproc, [&](int rank, comm::Communicator& communicator) {
    auto inputs = common_inputs(plan, data, signals);
    inputs.model = replicas[static_cast<std::size_t>(rank)];
    inputs.communicator = &communicator;
    inputs.ranks_in_process = plan.nproc;
    inputs.local_rank = rank;
    if (rank == 0) inputs.events = &events;
    if (rank == 0) inputs.status = StatusBoard::from_environment();
    train::train(std::move(inputs));
  });
}

void train_as_rank(const config::TrainPlan& plan, const World& world, const data::DatasetPair& data,
                   telemetry::EventWriter* events) {
  auto job = c10d::connect_job(world, {});
  const api::StopSignals signals;  // not before: a rank that waits for its peers ends at once
  auto inputs = common_inputs(plan, data, signals);
  inputs.model = seeded_model(plan, *data.train);
  inputs.communicator = job.communicator.get();
  inputs.events = events;
  inputs.status = StatusBoard::from_environment();
  inputs.local_rank = world.local_rank;
  train::train(std::move(inputs));
}

}  // namespace

int train(const std::filesystem::path& plan_file) {
  auto plan = read_plan(plan_file);
  plan.run_dir = plan_file.parent_path();  // byte for byte: JSON has no room for a path that is not UTF-8
  const World world = world_from_environment(process_environment());
  if (plan.device == "cuda") train::prepare_device(plan.device, 0, world.size);  // first of all: see load_cuda()
  const auto data = data::open_dataset(plan.data, plan.seed);
  std::optional<telemetry::EventWriter> events;
  if (world.is_main()) events.emplace(plan.run_dir / "events.jsonl");
  try {
    if (plan.strategy == "dp" && plan.nproc > 1) {
      train_in_threads(plan, data, *events);
    } else {
      train_as_rank(plan, world, data, events ? &*events : nullptr);
    }
  } catch (const std::exception& error) {
    if (events) events->write("run_end", {{"exit", "failed"}, {"message", error.what()}});
    throw;
  }
  return 0;
}

}  // namespace lockstep::worker
