#include "lockstep/cli/machine.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/world.h"
#include "lockstep/doctor/run_command.h"
#include "lockstep/host/cpus.h"
#include "lockstep/host/gpus.h"

namespace lockstep::cli {

namespace fs = std::filesystem;

config::Machine look_at_machine(bool look_for_gpus) {
  config::Machine machine;
  machine.usable_cpus = host::usable_cpus();
  if (!look_for_gpus) return machine;
  const EnvironmentReader environment = process_environment();
  const host::GpuInventory inventory = host::find_gpus(host::GpuSources::of_system(environment));
  const host::VisibleDevices visible = host::visible_devices(inventory, environment);
  machine.gpus_present = static_cast<int>(inventory.gpus.size());
  machine.gpus_visible = static_cast<int>(visible.gpus.size());
  if (visible.is_limited) machine.gpu_limit = text("CUDA_VISIBLE_DEVICES=", visible.value);
  if (machine.gpus_visible == 0) {
    machine.why_no_gpu = inventory.gpus.empty() ? inventory.why_none : visible.problem;
    if (machine.why_no_gpu.empty()) machine.why_no_gpu = "all are hidden";
  }
  return machine;
}

config::Machine machine_for(const config::FlagValues& values) {
  constexpr auto kPatience = std::chrono::seconds(20);
  config::Machine machine = look_at_machine(values.text("device") != "cpu");
  if (machine.gpus_visible == 0 || values.text("device") != "auto" || values.given("devices")) return machine;
  try {
    const auto answer = doctor::run_command({find_worker().string(), "why-cpu-only"}, kPatience);
    if (!answer.ok() || trim(answer.out).empty()) return machine;
    machine.gpus_visible = 0;
    machine.why_no_gpu = std::string(trim(answer.out));
  } catch (const ConfigError&) {
    // A missing worker is told when it is needed.
  }
  return machine;
}

fs::path find_worker() {
  const char* asked = std::getenv("LOCKSTEP_WORKER");
  const bool is_asked = asked != nullptr && *asked != '\0';
  const fs::path worker =
      is_asked ? fs::path(asked) : fs::read_symlink("/proc/self/exe").parent_path() / "lockstep-worker";
  std::error_code none;
  if (fs::is_regular_file(worker, none) && ::access(worker.c_str(), X_OK) == 0) return worker;
  throw ConfigError(text(is_asked ? "LOCKSTEP_WORKER=" : "", worker.string(),
                         fs::exists(worker, none) ? ": is not an executable file" : ": does not exist"),
                    "it is the program that trains: build the target lockstep_worker, or set LOCKSTEP_WORKER to it");
}

}  // namespace lockstep::cli
