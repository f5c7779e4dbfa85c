#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/flags.h"
#include "lockstep/config/train_plan.h"

namespace lockstep::config {

/// What the machine offers, as far as the plan depends on it.
struct Machine {
  int usable_cpus = 1;
  int gpus_present = 0;         ///< in the machine
  int gpus_visible = 0;         ///< to CUDA programs started from here
  std::string gpu_limit = {};   ///< "CUDA_VISIBLE_DEVICES=0" when a variable limits them, else empty
  std::string why_no_gpu = {};  ///< when gpus_visible is 0
};

/// What was asked of `lockstep train`, resolved against the machine, but not yet against the file system: the run
/// folder and the checkpoint are open.
struct TrainRequest {
  TrainPlan plan;
  std::map<std::string, std::string> origins;  ///< flag -> "default", "flag", "FILE:LINE" or why it was chosen
  std::optional<std::filesystem::path> run_dir;
  std::string resume = "none";  ///< none, auto or a path
  bool overwrite = false;
  std::optional<std::chrono::milliseconds> grace;
  std::string progress = "auto";
  bool json = false;
  std::vector<std::string> notes;  ///< choices that the user should hear of, one line each
};

/// Turns the values of `train` into a request. Throws ConfigError for values that do not go together; the message names
/// both flags.
TrainRequest resolve_train(const FlagValues& values, const Machine& machine);

/// The rows of `compare`, one request a strategy, all on the same kind of device. `run_dir` is left to the caller.
std::vector<TrainRequest> resolve_compare(const FlagValues& values, const Machine& machine);

/// The plan as a table: flag, value, origin; `asked_only` leaves the defaults out.
std::string plan_table(const TrainRequest& request, bool asked_only);

/// The content of plan.json: the plan's fields, "schema", "origins" and `extra`.
std::string plan_document(const TrainRequest& request, const std::map<std::string, std::string>& extra);

}  // namespace lockstep::config
