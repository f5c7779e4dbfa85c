#include <cstdio>
#include <optional>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/machine.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::cli {
namespace {

/// The N of --require gpus=N.
int required_gpus(const std::string& word) {
  constexpr std::string_view kKey = "gpus=";
  long long count = 0;
  if (!word.starts_with(kKey) || !parse_number(std::string_view(word).substr(kKey.size()), count) || count < 1 ||
      count > 1024) {
    throw ConfigError(text("--require '", word, "' is not accepted; expected gpus=N with N from 1 to 1024"));
  }
  return static_cast<int>(count);
}

/// Here a missing worker is a finding like any other.
doctor::Probe probe_libtorch() {
  try {
    return doctor::run_probe(find_worker(), doctor::run_command);
  } catch (const ConfigError& error) {
    doctor::Probe probe;
    probe.failure = split(error.what(), '\n').front();
    probe.hint = "build it: cmake --build build/release --target lockstep-worker";
    return probe;
  }
}

}  // namespace

int cmd_doctor(const Arguments& args) {
  const auto values = read_flags("doctor", args);
  if (!values) return 0;
  std::optional<int> gpus;
  if (values->has_value("require")) gpus = required_gpus(values->text("require"));

  const doctor::Machine machine = doctor::inspect_machine(probe_libtorch(), values->text("run-dir"));
  auto results = doctor::run_checks(machine);
  if (gpus) results.push_back(doctor::check_required_gpus(machine, *gpus));

  const std::string report =
      values->enabled("json") ? doctor::to_json(results).dump(2) + '\n' : doctor::to_text(results);
  std::fputs(report.c_str(), stdout);
  return doctor::any_failed(results) ? 1 : 0;
}

}  // namespace lockstep::cli
