#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/config/resolve.h"

namespace lockstep::cli {

/// Newest complete checkpoint of a run folder: <run>/checkpoints/step_<n> with a MANIFEST.json, by n. What is in it is
/// verified by the ranks.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run_dir);

/// Whether a folder holds a run: a plan, events or checkpoints.
bool holds_run(const std::filesystem::path& folder);

/// The folder of one run, locked against a second job for the life of this object.
class RunFolder {
 public:
  /// Uses `folder` as it is asked for: made when missing; its run set aside with `overwrite`, until keep() or
  /// discard(); refused (ConfigError) when it holds a run and neither `overwrite` nor `may_hold_run`, or when another
  /// job trains in it. What a killed run left half done there is cleared up: checkpoints in the making go, a run that
  /// was set aside for one that never began comes back.
  RunFolder(const std::filesystem::path& folder, bool overwrite, bool may_hold_run);

  /// Makes runs/<name>-<UTC time>, with a suffix when that is taken.
  static RunFolder make_fresh(const std::string& name);

  RunFolder(RunFolder&&) noexcept = default;
  RunFolder& operator=(RunFolder&&) noexcept = default;

  const std::filesystem::path& path() const noexcept { return path_; }

  /// The new run has begun: removes the one that it replaces. May be called again.
  void keep() noexcept;

  /// Nothing was trained: takes away what was made here, and nothing that was there before. A run that was set aside
  /// comes back.
  void discard() noexcept;

  /// Whether a run is set aside, neither replaced nor put back yet.
  bool is_replacing() const noexcept { return is_replacing_; }

 private:
  RunFolder() = default;
  void make(const std::filesystem::path& folder);
  void lock();

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  ///< folders that did not exist before, outermost first
  bool held_run_ = false;
  bool is_replacing_ = false;
  UniqueFd lock_;
};

/// Settles run folder and checkpoint of a request: plan.run_dir and plan.resume are set. Throws ConfigError.
RunFolder open_run_folder(config::TrainRequest& request);

}  // namespace lockstep::cli
