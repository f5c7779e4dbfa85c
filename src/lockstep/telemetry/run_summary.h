#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep::telemetry {

/// How a job ended, as its launcher saw it.
struct JobEnd {
  int exit_code = 0;
  bool stopped_by_signal = false;
  nlohmann::json failure = nullptr;  ///< object for "failure", or null
};

/// What the events of one run say, taken in as they come. A further run_start begins again.
class RunSummary {
 public:
  /// `expected`: strategy, world_size, device, global_batch, lr as planned; they stand in the document until (or in
  /// case) the run says otherwise.
  explicit RunSummary(nlohmann::json expected);

  /// Unknown types and fields of the wrong type are left out of account.
  void add(const nlohmann::json& event);

  bool started() const noexcept { return started_; }
  bool ended() const noexcept { return exit_.has_value(); }
  std::int64_t steps() const noexcept { return steps_; }                      ///< as far as events tell
  std::int64_t steps_per_epoch() const noexcept { return steps_per_epoch_; }  ///< 0 before run_start
  std::int64_t steps_of_this_run() const noexcept { return steps_ - resumed_from_step_.value_or(0); }
  std::optional<std::int64_t> resumed_from_step() const noexcept { return resumed_from_step_; }
  const nlohmann::json& last_step() const noexcept { return last_step_; }  ///< null before the first
  const std::vector<nlohmann::json>& epochs() const noexcept { return epochs_; }
  const std::string& newest_checkpoint() const noexcept { return newest_checkpoint_; }
  const std::string& fault() const noexcept { return fault_; }  ///< message of the last fault
  std::string weights_sha256() const { return weights_sha256_; }

  /// "completed", "stopped" or "failed". What the run recorded counts only as far as the exit code agrees.
  std::string exit(const JobEnd& end) const;

  /// The document of `lockstep train --json`, schema lockstep.train/1.
  nlohmann::json document(const JobEnd& end, const std::string& run_dir) const;

  /// Median over the epochs of a number in them; nullopt when no epoch has it.
  std::optional<double> median(const char* field) const;
  /// Its value in the last epoch that has it.
  std::optional<double> last(const char* field) const;

 private:
  void take_start(const nlohmann::json& event);
  void take_epoch(const nlohmann::json& event);

  nlohmann::json facts_;
  bool started_ = false;
  std::optional<std::string> exit_;
  std::int64_t steps_ = 0;
  std::int64_t steps_per_epoch_ = 0;
  std::optional<std::int64_t> resumed_from_step_;
  nlohmann::json last_step_;
  std::vector<nlohmann::json> epochs_;
  std::string newest_checkpoint_;
  std::string fault_;
  std::string weights_sha256_;
};

}  // namespace lockstep::telemetry
