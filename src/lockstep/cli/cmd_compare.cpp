#include <algorithm>
#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/table.h"
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

using nlohmann::json;

namespace {

struct Row {
  config::TrainRequest request;
  TrainOutcome outcome;
  std::optional<double> speedup;  ///< images a second against the first row's

  bool failed() const { return outcome.exit_code != 0; }
};

std::string fixed_or_dash(const std::optional<double>& value, int decimals) {
  return value ? fixed(*value, decimals) : "-";
}

// "118.2 MiB" when the devices agree to a tenth, else the list, or its ends when that is long.
std::string memory_text(const telemetry::RunSummary& summary) {
  std::vector<std::uint64_t> peaks;
  for (const auto& epoch : summary.epochs()) {
    if (!epoch["peak_memory_bytes"].is_array()) continue;
    const auto& bytes = epoch["peak_memory_bytes"];
    peaks.resize(std::max(peaks.size(), bytes.size()));
    for (std::size_t d = 0; d < bytes.size(); ++d) {
      if (bytes[d].is_number_unsigned()) peaks[d] = std::max(peaks[d], bytes[d].get<std::uint64_t>());
    }
  }
  if (peaks.empty()) return "-";
  constexpr std::size_t kMostListed = 4;
  if (peaks.size() > kMostListed) {
    const auto [low, high] = std::minmax_element(peaks.begin(), peaks.end());
    return text(format_bytes(*low), " to ", format_bytes(*high));
  }
  std::vector<std::string> words;
  for (const auto peak : peaks) words.push_back(format_bytes(peak));
  return join(words, ", ");
}

std::string devices_text(const config::TrainPlan& plan) {
  return text(plan.nproc, " x ", plan.device == "cuda" ? "GPU" : "CPU");
}

void fill_speedups(std::vector<Row>& rows) {
  const auto base = rows.empty() ? std::nullopt : rows.front().outcome.summary.median("images_per_second");
  for (auto& row : rows) {
    const auto rate = row.outcome.summary.median("images_per_second");
    if (base && *base > 0 && rate && !row.failed() && !rows.front().failed()) row.speedup = *rate / *base;
    row.outcome.document["speedup"] = row.speedup ? json(*row.speedup) : json(nullptr);
  }
}

std::string table_text(const std::vector<Row>& rows) {
  using Align = Table::Align;
  const bool with_cost = rows.front().request.plan.price_per_hour.has_value();
  Table table{.columns = {{"strategy"},
                          {"devices"},
                          {"s/epoch", Align::kRight},
                          {"final loss", Align::kRight},
                          {"accuracy", Align::kRight},
                          {"images/s", Align::kRight},
                          {"peak memory", Align::kRight},
                          {"speed-up", Align::kRight}},
              .rows = {}};
  if (with_cost) table.columns.push_back({"cost", Align::kRight});
  for (const auto& row : rows) {
    const auto& summary = row.outcome.summary;
    const auto rate = summary.median("images_per_second");
    table.rows.push_back({row.request.plan.strategy, devices_text(row.request.plan)});
    auto& cells = table.rows.back();
    if (row.failed()) {
      cells.push_back("failed");
      continue;
    }
    cells.insert(
        cells.end(),
        {fixed_or_dash(summary.median("seconds"), 2), fixed_or_dash(summary.last("train_loss"), 4),
         fixed_or_dash(summary.last("eval_accuracy"), 4), rate ? format_count(static_cast<std::uint64_t>(*rate)) : "-",
         memory_text(summary), row.speedup ? text(fixed(*row.speedup, 2), "x") : "-"});
    if (with_cost) cells.push_back(cost_text(row.request.plan, row.outcome.wall.count()));
  }
  return table.to_string();
}

// What a reader could get wrong from the table alone.
std::string footer_text(const std::vector<Row>& rows) {
  std::string out =
      "s/epoch and images/s are medians over the epochs; speed-up is the ratio of images/s to the first row.\n";
  if (rows.front().request.plan.price_per_hour) out += "cost is the price times the whole run, start included.\n";
  std::vector<std::string> batches;
  for (const auto& row : rows) {
    batches.push_back(text(row.request.plan.strategy, " ", row.request.plan.global_batch()));
  }
  const bool differ = std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
    return row.request.plan.global_batch() != rows.front().request.plan.global_batch();
  });
  if (differ) {
    out += text("--batch-size is per device, so the global batch differs (", join(batches, ", "),
                "): fewer, larger steps an epoch.\n");
  }
  for (const auto& row : rows) {
    if (row.failed()) {
      out += text(row.request.plan.strategy, " failed with exit code ", row.outcome.exit_code, "; its logs are in ",
                  row.request.plan.run_dir.string(), "/logs\n");
    } else if (row.speedup && *row.speedup < 1) {
      out += text(row.request.plan.strategy, " loses to ", rows.front().request.plan.strategy,
                  " here: ", fixed(*row.speedup, 2), " times its images a second.\n");
    }
  }
  return out;
}

// A strategy that cannot be started is a failed row like one that fails later.
TrainOutcome run_row(const config::TrainRequest& request, RunFolder& folder, const std::filesystem::path& worker,
                     const std::string& command_line, Console& console) {
  console.line(text("\n", request.plan.strategy, " on ", devices_text(request.plan), ", ", request.plan.epochs,
                    request.plan.epochs == 1 ? " epoch" : " epochs"));
  return run_train_job(request, folder, worker, command_line, console);
}

RunFolder open_compare_folder(const config::TrainRequest& request, const std::vector<config::TrainRequest>& all) {
  if (!request.run_dir)
    return RunFolder::make_fresh(text(std::filesystem::path(request.plan.model).stem().string(), "-compare"));
  for (const auto& each : all) {
    const auto folder = *request.run_dir / each.plan.strategy;
    if (holds_run(folder) && !request.overwrite) {
      throw ConfigError(text("--run-dir ", request.run_dir->string(), ": ", folder.string(), " already holds a run"),
                        "--overwrite removes it, another --run-dir keeps both");
    }
  }
  return RunFolder(*request.run_dir, request.overwrite, false);
}

}  // namespace

int cmd_compare(const Arguments& args) {
  const auto values = read_flags("compare", args);
  if (!values) return 0;
  const config::Machine machine = machine_for(*values);
  auto requests = config::resolve_compare(*values, machine);
  int most_processes = 1;
  for (const auto& request : requests) most_processes = std::max(most_processes, request.plan.num_processes());
  check_data(*values, most_processes);
  const auto worker = find_worker();
  const config::TrainRequest& first = requests.front();
  Console console(first.json, first.progress);
  RunFolder folder = open_compare_folder(first, requests);
  for (const auto& note : first.notes) console.note(note);
  console.line(text("comparing ", values->text("strategies"), ": ", first.plan.model, " on ", first.plan.data,
                    ", run folder ", folder.path().string()));
  if (values->given("config")) console.line(text("\n", config::plan_table(first, false)));

  std::vector<Row> rows;
  int exit_code = 0;
  for (auto& request : requests) {
    request.plan.run_dir = folder.path() / request.plan.strategy;
    RunFolder row_folder(request.plan.run_dir, request.overwrite, false);
    try {
      rows.push_back({request, run_row(request, row_folder, worker, shell_line("compare", args), console), {}});
    } catch (...) {
      if (rows.empty()) folder.discard();
      throw;
    }
    const TrainOutcome& outcome = rows.back().outcome;
    if (exit_code == 0) exit_code = outcome.exit_code;
    if (outcome.stop_signal != 0) break;
    // Input that the first strategy refuses is refused by all: one message is enough.
    if (rows.size() == 1 && outcome.was_refused()) {
      folder.discard();
      break;
    }
  }

  fill_speedups(rows);
  json document{{"schema", "lockstep.compare/1"}, {"rows", json::array()}, {"exit_code", exit_code}};
  for (const auto& row : rows) document["rows"].push_back(row.outcome.document);
  const std::string document_text = document.dump(2, ' ', false, json::error_handler_t::replace);
  const bool was_refused = rows.size() == 1 && rows.front().outcome.was_refused();
  if (!was_refused) {
    write_file_atomic(folder.path() / "compare.json", document_text + "\n");
    console.line(text("\n", table_text(rows), "\n", footer_text(rows), "records in ", folder.path().string()));
  }
  if (first.json) std::puts(document_text.c_str());
  return exit_code;
}

}  // namespace lockstep::cli
