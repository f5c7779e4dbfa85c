#include "lockstep/cli/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::cli {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRunsFolder = "runs";
// What a run leaves in its folder; --overwrite and discard() touch nothing else.
constexpr const char* kRunFiles[] = {"plan.json", "events.jsonl", "logs", "checkpoints", "report.html", "compare.json"};

// The run to be replaced waits in a folder inside its own, so that renames move it. The folder's name says how far it
// has come, and each step to the next name is one rename, so that a job killed at any moment loses neither run:
constexpr const char* kMovingFolder = ".moving-run";      // on its way out or back; the run's other files are beside it
constexpr const char* kReplacedFolder = ".replaced-run";  // whole; what is beside it is a run that has not begun
constexpr const char* kRemovedFolder = ".removed-run";    // the new run has begun: to be removed
// As train/checkpoint.cpp names a checkpoint in the making.
constexpr std::string_view kUnfinishedPrefix = ".saving-step_";

void set_aside(const fs::path& folder) {
  fs::create_directory(folder / kMovingFolder);
  for (const char* name : kRunFiles) {
    if (fs::exists(folder / name)) fs::rename(folder / name, folder / kMovingFolder / name);
  }
  fs::rename(folder / kMovingFolder, folder / kReplacedFolder);
}

void move_back(const fs::path& folder, std::error_code& error) {
  for (const char* name : kRunFiles) {
    if (fs::exists(folder / kMovingFolder / name, error)) {
      fs::rename(folder / kMovingFolder / name, folder / name, error);
    }
  }
  fs::remove(folder / kMovingFolder, error);
}

void put_back(const fs::path& folder, std::error_code& error) {
  for (const char* name : kRunFiles) fs::remove_all(folder / name, error);
  fs::rename(folder / kReplacedFolder, folder / kMovingFolder, error);
  move_back(folder, error);
}

void clear_unfinished(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kMovingFolder, error)) move_back(folder, error);
  if (fs::exists(folder / kReplacedFolder, error)) put_back(folder, error);
  fs::remove_all(folder / kRemovedFolder, error);
  for (const auto& entry : fs::directory_iterator(folder / "checkpoints", error)) {
    if (entry.path().filename().string().starts_with(kUnfinishedPrefix)) fs::remove_all(entry.path(), error);
  }
}

bool is_empty_folder(const fs::path& folder) {
  std::error_code error;
  return fs::is_empty(folder, error) && !error;
}

std::optional<fs::path> newest_run(const std::string& prefix) {
  std::error_code none;
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(kRunsFolder, none)) {
    const std::string name = entry.path().filename().string();
    // The time stamp sorts as text; what follows the prefix must be one, not the rest of a longer strategy's name.
    const bool matches = name.starts_with(prefix) && name.size() > prefix.size() && name[prefix.size()] >= '0' &&
                         name[prefix.size()] <= '9';
    if (matches && fs::exists(entry.path() / "plan.json", none)) runs.push_back(entry.path());
  }
  const auto newest = std::max_element(runs.begin(), runs.end());
  return newest == runs.end() ? std::nullopt : std::optional(*newest);
}

}  // namespace

std::optional<fs::path> newest_checkpoint(const fs::path& run_dir) {
  constexpr std::string_view kPrefix = "step_";
  std::optional<fs::path> newest;
  long long newest_step = -1;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run_dir / "checkpoints", none)) {
    const std::string name = entry.path().filename().string();
    long long step = 0;
    if (!name.starts_with(kPrefix) || !parse_number(std::string_view(name).substr(kPrefix.size()), step)) continue;
    if (step <= newest_step || !fs::exists(entry.path() / "MANIFEST.json", none)) continue;
    newest_step = step;
    newest = entry.path();
  }
  return newest;
}

bool holds_run(const fs::path& folder) {
  std::error_code none;
  return fs::exists(folder / "plan.json", none) || fs::exists(folder / "events.jsonl", none) ||
         fs::exists(folder / kMovingFolder, none) || fs::exists(folder / kReplacedFolder, none) ||
         (fs::exists(folder / "checkpoints", none) && !is_empty_folder(folder / "checkpoints"));
}

RunFolder::RunFolder(const fs::path& folder, bool overwrite, bool may_hold_run) {
  std::error_code none;
  if (fs::exists(folder, none) && !fs::is_directory(folder, none)) {
    throw ConfigError(text("--run-dir ", folder.string(), ": is a file, expected a folder"));
  }
  held_run_ = holds_run(folder);
  if (held_run_ && !overwrite && !may_hold_run) {
    throw ConfigError(text("--run-dir ", folder.string(), ": already holds a run"),
                      "--resume auto goes on with it, --overwrite removes it, another --run-dir keeps both");
  }
  make(folder);
  lock();
  clear_unfinished(path_);
  if (held_run_ && overwrite) {
    set_aside(path_);
    held_run_ = false;
    is_replacing_ = true;
  }
}

RunFolder RunFolder::make_fresh(const std::string& name) {
  const std::string stamped = text(name, "-", utc_file_stamp(std::chrono::system_clock::now()));
  RunFolder run;
  run.make(kRunsFolder);
  for (int suffix = 1;; ++suffix) {
    const fs::path folder = fs::path(kRunsFolder) / (suffix == 1 ? stamped : text(stamped, "-", suffix));
    std::error_code error;
    // create_directory tells who made it: of two jobs in one second each gets its own.
    if (fs::create_directory(folder, error)) {
      run.path_ = folder;
      run.made_.push_back(folder);
      run.lock();
      return run;
    }
    if (error) throw ConfigError(text(folder.string(), ": the run folder cannot be made: ", error.message()));
  }
}

void RunFolder::make(const fs::path& folder) {
  path_ = folder;
  fs::path partial;
  for (const auto& part : folder) {
    partial /= part;
    std::error_code error;
    if (fs::create_directory(partial, error)) made_.push_back(partial);
    if (error && !fs::is_directory(partial)) {
      throw ConfigError(
          text("--run-dir ", folder.string(), ": ", partial.string(), " cannot be made: ", error.message()));
    }
  }
}

void RunFolder::lock() {
  // A lock on the folder itself leaves no file behind and goes with the process, however it ends.
  lock_.reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) throw ConfigError(text(path_.string(), ": ", SystemError::from_errno("cannot be opened", errno).what()));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) return;  // a file system without locks: go on without
  throw ConfigError(text("--run-dir ", path_.string(), ": another lockstep is training in it now"));
}

void RunFolder::keep() noexcept {
  if (!is_replacing_) return;
  is_replacing_ = false;
  std::error_code ignored;
  fs::rename(path_ / kReplacedFolder, path_ / kRemovedFolder, ignored);
  fs::remove_all(path_ / kRemovedFolder, ignored);
}

void RunFolder::discard() noexcept {
  std::error_code ignored;
  if (is_replacing_) {
    put_back(path_, ignored);
    is_replacing_ = false;
    held_run_ = true;
  }
  if (!held_run_) {
    for (const char* name : kRunFiles) fs::remove_all(path_ / name, ignored);
  }
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
    if (is_empty_folder(*folder)) fs::remove(*folder, ignored);
  }
}

namespace {

fs::path checkpoint_at(const fs::path& path) {
  std::error_code none;
  if (fs::exists(path / "MANIFEST.json", none)) return path;
  if (const auto newest = newest_checkpoint(path)) return *newest;
  if (!fs::exists(path, none)) throw ConfigError(text("--resume ", path.string(), ": does not exist"));
  throw ConfigError(text("--resume ", path.string(), ": holds no complete checkpoint"),
                    "expected a folder with a MANIFEST.json, or a run folder with checkpoints/step_<n>");
}

}  // namespace

RunFolder open_run_folder(config::TrainRequest& request) {
  config::TrainPlan& plan = request.plan;
  const std::string name = text(fs::path(plan.model).stem().string(), "-", plan.strategy);
  const bool automatic = request.resume == "auto";
  plan.resume = "none";
  if (request.resume != "none" && !automatic) plan.resume = checkpoint_at(request.resume).string();

  std::optional<fs::path> folder = request.run_dir;
  if (!folder && automatic) folder = newest_run(name + "-");
  RunFolder run =
      folder ? RunFolder(*folder, request.overwrite, request.resume != "none") : RunFolder::make_fresh(name);
  // The ranks choose: the newest checkpoint that holds against its checksums, an older one when it does not.
  if (automatic && newest_checkpoint(run.path())) plan.resume = "auto";
  plan.run_dir = run.path();
  return run;
}

}  // namespace lockstep::cli
