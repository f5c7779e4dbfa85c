#include "lockstep/cli/train_job.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/version.h"
#include "lockstep/telemetry/events.h"

namespace lockstep::cli {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::optional<double> cost(const config::TrainPlan& plan, double seconds) {
  if (!plan.price_per_hour) return std::nullopt;
  return *plan.price_per_hour * seconds / 3600;
}

json expected_facts(const config::TrainPlan& plan) {
  return {{"strategy", plan.strategy},
          {"world_size", plan.nproc},
          {"device", plan.device},
          {"global_batch", plan.global_batch()},
          {"lr", plan.scaled_lr()}};
}

std::string number_or_dash(const json& value, int decimals) {
  return value.is_number() ? fixed(value.get<double>(), decimals) : "-";
}

std::string epoch_line(const json& epoch, const config::TrainPlan& plan) {
  std::string line =
      text("epoch ", epoch["epoch"].dump(), "/", plan.epochs, "  loss ", number_or_dash(epoch["train_loss"], 4));
  if (epoch["eval_loss"].is_number()) line += text("  eval loss ", number_or_dash(epoch["eval_loss"], 4));
  if (epoch["eval_accuracy"].is_number()) line += text("  accuracy ", number_or_dash(epoch["eval_accuracy"], 4));
  if (epoch["images_per_second"].is_number()) {
    line += text("  ", format_count(static_cast<std::uint64_t>(epoch["images_per_second"].get<double>())), " images/s");
  }
  if (epoch["seconds"].is_number()) {
    const double seconds = epoch["seconds"].get<double>();
    line += text("  ", format_duration(std::chrono::duration<double>(seconds)));
    if (plan.price_per_hour) line += text("  ", cost_text(plan, seconds));
  }
  return line;
}

json failure_document(const launch::RankFailure& failure) {
  return {{"rank", failure.rank},
          {"host", host_name()},
          {"pid", failure.pid},
          {"signal", failure.signal != 0 ? json(failure.signal) : json(nullptr)},
          {"exit_code", failure.signal == 0 ? json(failure.exit_code) : json(nullptr)},
          {"step", failure.step ? json(*failure.step) : json(nullptr)},
          {"last_lines", failure.last_lines}};
}

// Takes in events as they come and shows what they say.
class Follower {
 public:
  Follower(const config::TrainPlan& plan, Console& console)
      : plan_(plan),
        console_(console),
        reader_(telemetry::EventReader::from_end(plan.run_dir / "events.jsonl")),
        summary_(expected_facts(plan)) {}

  void poll() {
    for (const auto& event : reader_.poll()) {
      const std::size_t epochs_before = summary_.epochs().size();
      summary_.add(event);
      if (summary_.epochs().size() > epochs_before) console_.line(epoch_line(summary_.epochs().back(), plan_));
      if (event["event"] == "fault" && !summary_.fault().empty()) console_.note(summary_.fault());
    }
    console_.show_progress(summary_, plan_.epochs);
  }

  const telemetry::RunSummary& summary() const noexcept { return summary_; }

 private:
  const config::TrainPlan& plan_;
  Console& console_;
  telemetry::EventReader reader_;
  telemetry::RunSummary summary_;
};

// The MLP's products are so small that waking a second thread costs more than it brings: at batch 32 one thread does
// 93k images/s and two 72k, and far less where something else wants the second CPU.
std::optional<int> most_threads(const config::TrainPlan& plan) {
  constexpr std::int64_t kSmallBatch = 128;
  // The fused convolution shares out blocks of 16 images; threads beyond those would only be woken at each step.
  constexpr std::int64_t kBlockImages = 16, kMost = 1024;
  if (plan.device != "cpu") return std::nullopt;
  if (plan.model == "mlp" && plan.batch_size <= kSmallBatch) return 1;
  if (plan.model == "cnn" && plan.fuse != "off") {
    return static_cast<int>(std::min(kMost, (plan.batch_size - 1) / kBlockImages + 1));
  }
  return std::nullopt;
}

launch::LaunchOptions launch_options(const config::TrainRequest& request, const fs::path& worker, Follower& follower,
                                     RunFolder& folder) {
  const config::TrainPlan& plan = request.plan;
  launch::LaunchOptions options;
  options.command = {worker.string(), "train", (plan.run_dir / "plan.json").string()};
  options.num_processes = plan.num_processes();
  options.ranks_per_process = plan.nproc / options.num_processes;
  options.most_threads_per_rank = most_threads(plan);
  options.tune_openmp = true;
  options.store_server = launch::StoreServer::kRankZero;
  options.worker_program = worker;
  options.log_dir = plan.run_dir / "logs";
  options.prefix_output = options.num_processes > 1;
  options.quiet_stdout = request.json;
  if (request.grace) options.grace_after_failure = options.grace_after_stop = *request.grace;
  options.on_tick = [&follower, &folder] {
    follower.poll();
    if (follower.summary().started()) folder.keep();
  };
  return options;
}

void write_plan(const config::TrainRequest& request, const std::string& command_line) {
  fs::create_directories(request.plan.run_dir / "logs");
  write_file_atomic(request.plan.run_dir / "plan.json",
                    config::plan_document(request, {{"command_line", command_line},
                                                    {"version", kVersion},
                                                    {"host", host_name()},
                                                    {"created", utc_timestamp(std::chrono::system_clock::now())}}));
}

// A rank that ended well but recorded nothing did not train.
int checked_exit_code(const launch::LaunchResult& result, const telemetry::RunSummary& summary, Console& console) {
  if (result.exit_code != 0) return result.exit_code;
  if (!summary.started()) {
    console.note("error: the ranks ended with exit code 0 but recorded no run");
    return 1;
  }
  if (!summary.ended()) console.note("warning: the end of the run is not in its events; was the disk full?");
  return 0;
}

}  // namespace

std::string cost_text(const config::TrainPlan& plan, double seconds) {
  const auto amount = cost(plan, seconds);
  return amount ? text(fixed(*amount, *amount < 0.1 ? 6 : 2), " ", plan.currency) : "";
}

TrainOutcome run_train_job(const config::TrainRequest& request, RunFolder& folder, const fs::path& worker,
                           const std::string& command_line, Console& console) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    Follower follower(request.plan, console);
    write_plan(request, command_line);
    const launch::LaunchResult result = launch::launch(launch_options(request, worker, follower, folder));
    follower.poll();
    console.clear_bar();

    TrainOutcome outcome{.summary = follower.summary()};
    outcome.exit_code = checked_exit_code(result, outcome.summary, console);
    outcome.stop_signal = result.stop_signal;
    outcome.wall = std::chrono::steady_clock::now() - begin;
    const telemetry::JobEnd end{
        .exit_code = outcome.exit_code,
        .stopped_by_signal = result.stop_signal != 0,
        .failure = result.first_failure ? failure_document(*result.first_failure) : json(nullptr)};
    outcome.document = outcome.summary.document(end, request.plan.run_dir.string());
    // Steps are logged now and then; the board knows how far a rank that failed had come.
    if (result.first_failure && result.first_failure->step && *result.first_failure->step > outcome.summary.steps()) {
      outcome.document["steps"] = *result.first_failure->step;
    }
    if (const auto amount = cost(request.plan, outcome.wall.count())) {
      outcome.document["cost"] = *amount;
      outcome.document["currency"] = request.plan.currency;
    }
    outcome.is_old_run_back = folder.is_replacing();
    if (outcome.was_refused() || outcome.is_old_run_back) folder.discard();
    return outcome;
  } catch (...) {
    folder.discard();
    throw;
  }
}

}  // namespace lockstep::cli
