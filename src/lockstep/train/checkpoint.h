#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/optim/arena.h"

namespace lockstep::train {

/// Where a run stands, besides weights and optimizer: enough to go on as if nothing had happened.
struct RunState {
  std::int64_t step = 0;              ///< optimizer steps done
  std::int64_t epoch = 0;             ///< epoch under way, from 0; equal to the planned epochs when all are done
  std::int64_t samples_in_epoch = 0;  ///< samples of this epoch's order that all ranks together have consumed
  double epoch_loss_sum = 0;          ///< loss times samples so far in this epoch, and the samples behind it
  double epoch_loss_samples = 0;
  std::string model;
  std::string data;
  std::string optimizer;
  std::string precision;
  std::uint64_t seed = 0;
  std::int64_t dataset_size = 0;  ///< training samples
  int world_size = 1;
  std::int64_t global_batch = 0;
  std::optional<amp::GradScaler::State> loss_scale = std::nullopt;  ///< with fp16
  std::vector<std::string> layout = {};  ///< the parameters in the arena's order, in which sums over all of them run
};

/// A checkpoint folder step_<n>/ holds model.safetensors, optimizer.safetensors, state.json and, written last,
/// MANIFEST.json with the size and SHA-256 of each. It is built under a temporary name and renamed when complete, so
/// a folder that has its final name is whole, and an interrupted save leaves the older ones alone.
struct Checkpoint {
  RunState state;
  std::vector<optim::NamedTensor> model;
  std::vector<optim::NamedTensor> optimizer;  ///< "<parameter>.<state name>", e.g. fc1.weight.exp_avg
  std::vector<at::Tensor> random_states;      ///< CPU generator of each rank, uint8
};

struct SavedCheckpoint {
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;
};

/// Saves into `folder`/step_<n>, replacing one of the same step, and then removes all but the newest `keep` (0 keeps
/// all) and left-over temporary folders. Throws SystemError naming path, bytes needed and bytes free; nothing old is
/// lost.
SavedCheckpoint save_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint, std::int64_t keep);

/// Reads and verifies one checkpoint folder. Throws CheckpointError naming path and problem: not a checkpoint,
/// incomplete, size or checksum differs, newer format.
Checkpoint load_checkpoint(const std::filesystem::path& path);

/// The newest complete checkpoint in `folder` by step that loads; damaged ones are skipped with a warning that names
/// them. nullopt when there is none. Throws CheckpointError when there are some and every one is damaged.
std::optional<Checkpoint> load_newest_checkpoint(const std::filesystem::path& folder);

}  // namespace lockstep::train
