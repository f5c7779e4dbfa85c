#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/cli/console.h"
#include "lockstep/cli/run_folder.h"
#include "lockstep/config/resolve.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/telemetry/run_summary.h"

namespace lockstep::cli {

/// What became of one training job.
struct TrainOutcome {
  int exit_code = 0;
  int stop_signal = 0;  ///< the signal that asked us to stop, else 0
  telemetry::RunSummary summary;
  std::chrono::duration<double> wall{};
  bool is_old_run_back = false;       ///< --overwrite, but nothing began: the folder holds what it held before
  nlohmann::json document = nullptr;  ///< lockstep.train/1, with cost and currency when there is a price

  /// Nothing was trained because the ranks found the input unusable.
  bool was_refused() const { return exit_code == 2 && stop_signal == 0 && summary.steps_of_this_run() == 0; }
};

/// Writes the plan into `folder`, starts the ranks, follows their events and returns when all are gone. A folder in
/// which nothing was trained is discarded; a run that it replaces is given up once the new one has begun.
/// `command_line` is recorded. Must be called with one thread. Throws ConfigError, SystemError when the job cannot be
/// started; the folder is discarded then too.
TrainOutcome run_train_job(const config::TrainRequest& request, RunFolder& folder, const std::filesystem::path& worker,
                           const std::string& command_line, Console& console);

/// "0.0123 USD": `seconds` at the plan's price; empty without a price.
std::string cost_text(const config::TrainPlan& plan, double seconds);

}  // namespace lockstep::cli
