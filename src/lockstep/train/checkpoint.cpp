#include "lockstep/train/checkpoint.h"

#include <algorithm>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/json_error.h"
#include "lockstep/formats/manifest.h"
#include "lockstep/train/weights.h"

namespace lockstep::train {

// Not in the unnamed namespace below: the JSON library finds it through RunState's namespace.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunState, step, epoch, samples_in_epoch, epoch_loss_sum, epoch_loss_samples, model,
                                   data, optimizer, precision, seed, dataset_size, world_size, global_batch)

namespace fs = std::filesystem;

namespace {

constexpr const char* kSchema = "lockstep.checkpoint/1";
constexpr std::string_view kFolderPrefix = "step_";
constexpr std::string_view kTemporaryPrefix = ".saving-step_";
constexpr std::string_view kRandomPrefix = "random_state.";

// The step in a checkpoint folder's name, or nothing when it is named otherwise.
std::optional<std::int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  long long step = 0;
  if (!name.starts_with(kFolderPrefix) || !parse_number(std::string_view(name).substr(kFolderPrefix.size()), step)) {
    return std::nullopt;
  }
  return step;
}

// Checkpoint folders, newest (highest step) first.
std::vector<fs::path> checkpoint_folders(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.is_directory() && step_of(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return *step_of(a) > *step_of(b); });
  return found;
}

// Only called once a new checkpoint is complete, so the newest one is never among those that go.
void remove_old(const fs::path& folder, std::int64_t keep) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().starts_with(kTemporaryPrefix)) fs::remove_all(entry.path(), ignored);
  }
  const auto folders = checkpoint_folders(folder);
  for (std::size_t f = 0; keep > 0 && f < folders.size(); ++f) {
    if (f >= static_cast<std::size_t>(keep)) fs::remove_all(folders[f], ignored);
  }
}

void write_contents(const fs::path& path, const Checkpoint& checkpoint) {
  save_tensors(path / "model.safetensors", checkpoint.model);
  auto optimizer = checkpoint.optimizer;
  for (std::size_t rank = 0; rank < checkpoint.random_states.size(); ++rank) {
    optimizer.push_back({text(kRandomPrefix, rank), checkpoint.random_states[rank]});
  }
  save_tensors(path / "optimizer.safetensors", optimizer);
  nlohmann::json state = checkpoint.state;
  state["schema"] = kSchema;
  state["layout"] = checkpoint.state.layout;
  if (const auto& scale = checkpoint.state.loss_scale) {
    state["loss_scale"] = {{"scale", scale->scale}, {"growth_tracker", scale->growth_tracker}, {"skips", scale->skips}};
  }
  write_file_atomic(path / "state.json", state.dump(1) + "\n");
  formats::write_manifest(path, std::vector<std::string>{"model.safetensors", "optimizer.safetensors", "state.json"});
}

std::uint64_t folder_size_bytes(const fs::path& path) {
  std::uint64_t size_bytes = 0;
  for (const auto& entry : fs::directory_iterator(path)) size_bytes += entry.file_size();
  return size_bytes;
}

RunState read_state(const fs::path& path) {
  const auto file = path / "state.json";
  try {
    const auto json = nlohmann::json::parse(read_file(file));
    if (json.at("schema") != kSchema) {
      throw CheckpointError(text(file.string(), ": schema ", json.at("schema").dump(), ", expected \"", kSchema, "\""),
                            "it was written by a newer version of Lockstep");
    }
    auto state = json.get<RunState>();
    state.layout = json.value("layout", std::vector<std::string>{});
    if (json.contains("loss_scale")) {
      const auto& scale = json.at("loss_scale");
      state.loss_scale = {scale.at("scale"), scale.at("growth_tracker"), scale.at("skips")};
    }
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(text(file.string(), ": ", formats::describe(error)));
  }
}

}  // namespace

SavedCheckpoint save_checkpoint(const fs::path& folder, const Checkpoint& checkpoint, std::int64_t keep) {
  const fs::path target = folder / text(kFolderPrefix, checkpoint.state.step);
  const fs::path temporary = folder / text(kTemporaryPrefix, checkpoint.state.step);
  std::error_code error;
  fs::create_directories(folder, error);
  fs::remove_all(temporary, error);
  fs::create_directory(temporary, error);
  if (error) throw SystemError(text(temporary.string(), ": cannot be created: ", error.message()));
  try {
    write_contents(temporary, checkpoint);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  sync_directory(temporary);
  // rename() does not replace a folder that has content. The one in the way holds the same step of the same run.
  fs::remove_all(target, error);
  fs::rename(temporary, target);
  sync_directory(folder);
  const SavedCheckpoint saved{target, folder_size_bytes(target)};
  remove_old(folder, keep);
  return saved;
}

Checkpoint load_checkpoint(const fs::path& path) {
  if (!fs::is_directory(path)) {
    throw CheckpointError(text(path.string(), fs::exists(path) ? ": is not a checkpoint folder" : ": does not exist"),
                          "a checkpoint is a folder step_<n> with a MANIFEST.json");
  }
  const auto problems = formats::verify_manifest(path);
  if (!problems.empty()) throw CheckpointError(problems.front().what);
  Checkpoint checkpoint;
  checkpoint.state = read_state(path);
  checkpoint.model = load_tensors(path / "model.safetensors");
  for (auto& entry : load_tensors(path / "optimizer.safetensors")) {
    if (!entry.name.starts_with(kRandomPrefix)) {
      checkpoint.optimizer.push_back(std::move(entry));
      continue;
    }
    long long rank = 0;
    if (!parse_number(std::string_view(entry.name).substr(kRandomPrefix.size()), rank) || rank < 0 || rank > 1 << 20) {
      throw CheckpointError(text(path.string(), ": tensor ", entry.name, " names no rank"));
    }
    checkpoint.random_states.resize(std::max(checkpoint.random_states.size(), static_cast<std::size_t>(rank) + 1));
    checkpoint.random_states[static_cast<std::size_t>(rank)] = std::move(entry.tensor);
  }
  return checkpoint;
}

std::optional<Checkpoint> load_newest_checkpoint(const fs::path& folder) {
  const auto folders = checkpoint_folders(folder);
  for (const auto& path : folders) {
    try {
      return load_checkpoint(path);
    } catch (const Error& error) {
      log::warning(text("checkpoint skipped: ", error.what()));
    }
  }
  if (folders.empty()) return std::nullopt;
  throw CheckpointError(text(folder.string(), ": all ", folders.size(), " checkpoints are damaged"),
                        "--overwrite starts afresh and removes them");
}

}  // namespace lockstep::train
