#include <cstdio>
#include <filesystem>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/check_data.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/console.h"
#include "lockstep/cli/machine.h"
#include "lockstep/cli/run_folder.h"
#include "lockstep/cli/train_job.h"

namespace lockstep::cli {

namespace {

std::string device_words(const config::TrainPlan& plan) {
  std::string words = plan.device == "cuda" ? text("GPU ", plan.devices.front()) : std::string("the CPU");
  const bool has_processes = plan.strategy == "ddp" || plan.strategy == "zero1" || plan.strategy == "zero2";
  if (has_processes) words = text(plan.nproc, plan.nproc == 1 ? " process on " : " processes on ", words);
  if (plan.strategy == "dp") words = text(plan.nproc, plan.nproc == 1 ? " device on " : " devices on ", words);
  return plan.device_reason.empty() ? words : text(words, " (", plan.device_reason, ")");
}

void print_start(const config::TrainRequest& request, bool with_table, Console& console) {
  const config::TrainPlan& plan = request.plan;
  for (const auto& note : request.notes) console.note(note);
  console.line(text("training ", plan.model, " on ", plan.data, ": ", plan.strategy, ", ", device_words(plan)));
  std::string batch = text("  batch ", plan.batch_size);
  if (plan.global_batch() != plan.batch_size) {
    batch +=
        text(" x ", plan.nproc, plan.accumulate > 1 ? text(" x ", plan.accumulate) : "", " = ", plan.global_batch());
  }
  const double lr = plan.scaled_lr();
  console.line(text(batch, ", ", plan.optimizer, " lr ", lr,
                    plan.scale_lr != "none" ? text(" (", plan.lr, " scaled ", plan.scale_lr, ")") : "", ", ",
                    plan.precision, ", ", plan.epochs, plan.epochs == 1 ? " epoch" : " epochs",
                    plan.max_steps ? text(", at most ", *plan.max_steps, " steps") : ""));
  if (plan.resume != "none")
    console.line(text("  resuming from ", plan.resume == "auto" ? "the newest good checkpoint" : plan.resume));
  console.line(text("  run folder ", plan.run_dir.string()));
  const std::string table = with_table ? config::plan_table(request, false) : "";
  if (!table.empty()) console.line(text("\n", table));
}

void print_end(const config::TrainRequest& request, const TrainOutcome& outcome, Console& console) {
  if (outcome.was_refused()) return;  // the launcher has said why
  const config::TrainPlan& plan = request.plan;
  const std::string sha = outcome.summary.weights_sha256();
  const std::string cost = cost_text(plan, outcome.wall.count());
  std::string line = text(outcome.document["exit"].get<std::string>(), " at step ", outcome.document["steps"].dump(),
                          " after ", format_duration(outcome.wall));
  if (!cost.empty()) line += text(", ", cost);
  if (!sha.empty()) line += text(", weights sha256 ", sha.substr(0, 12));
  console.line(line);
  if (!outcome.summary.newest_checkpoint().empty()) {
    console.line(text("  newest checkpoint ", outcome.summary.newest_checkpoint()));
  }
  if (plan.dump_final && outcome.exit_code == 0) console.line(text("  final weights ", plan.dump_final->string()));
  if (outcome.is_old_run_back) {
    console.line(text("  ", plan.run_dir.string(), " holds the run that it held before"));
    return;
  }
  std::vector<std::string> records;
  std::error_code none;
  for (const char* name : {"plan.json", "events.jsonl", "logs/"}) {
    if (std::filesystem::exists(plan.run_dir / name, none)) records.emplace_back(name);
  }
  console.line(text("  records in ", plan.run_dir.string(), " (", join(records, ", "), ")"));
}

}  // namespace

int cmd_train(const Arguments& args) {
  const auto values = read_flags("train", args);
  if (!values) return 0;
  const config::Machine machine = machine_for(*values);
  config::TrainRequest request = config::resolve_train(*values, machine);
  check_data(*values, request.plan.num_processes());
  const auto worker = find_worker();
  Console console(request.json, request.progress);
  RunFolder folder = open_run_folder(request);
  print_start(request, values->given("config"), console);
  const TrainOutcome outcome = run_train_job(request, folder, worker, shell_line("train", args), console);
  print_end(request, outcome, console);
  if (request.json) std::puts(outcome.document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return outcome.exit_code;
}

}  // namespace lockstep::cli
