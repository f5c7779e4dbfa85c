#include <cstdio>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/machine.h"
#include "lockstep/config/help.h"
#include "lockstep/config/run_flags.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::cli {

namespace {

namespace fs = std::filesystem;

// --nproc-per-node and --nproc are one flag under two names.
std::string asked_processes(const config::FlagValues& values) {
  const bool has_long = values.given("nproc-per-node");
  const bool has_short = values.given("nproc");
  if (has_long && has_short && values.text("nproc-per-node") != values.text("nproc")) {
    throw ConfigError(text("--nproc-per-node ", values.text("nproc-per-node"), " and --nproc ", values.text("nproc"),
                           " contradict each other: they are one flag"));
  }
  return has_long ? values.text("nproc-per-node") : has_short ? values.text("nproc") : "1";
}

int count_processes(const std::string& asked) {
  long long number = 0;
  if (parse_number(asked, number)) return static_cast<int>(number);
  const config::Machine machine = look_at_machine(asked != "cpu");
  if (asked != "cpu" && machine.gpus_visible > 0) return machine.gpus_visible;
  if (asked == "gpu") {
    throw ConfigError(text("--nproc-per-node gpu: there is no visible GPU (", machine.why_no_gpu, ")"),
                      "`lockstep doctor` looks for the reason; --nproc-per-node cpu starts one process for each CPU");
  }
  return machine.usable_cpus;
}

// The launcher itself says, once, why a worker that is missing or cannot run cannot serve the store. One that was asked
// for by name must be there.
fs::path worker_or_its_place() {
  try {
    return find_worker();
  } catch (const ConfigError&) {
    if (const char* asked = std::getenv("LOCKSTEP_WORKER"); asked != nullptr && *asked != '\0') throw;
    return fs::read_symlink("/proc/self/exe").parent_path() / "lockstep-worker";
  }
}

}  // namespace

int cmd_run(const Arguments& args) {
  const config::CommandSpec spec = config::run_spec();
  config::FlagValues values = config::parse_flags(spec, args);
  if (values.help_requested) {
    std::fputs(config::command_help(spec, false).c_str(), stdout);
    return 0;
  }
  config::add_pet_variables(values, process_environment());
  if (values.rest.empty()) {
    throw ConfigError("there is no program to run", "lockstep run --nproc-per-node 2 -- PROGRAM [ARGUMENTS...]");
  }

  launch::LaunchOptions options;
  options.command = values.rest;
  options.num_processes = count_processes(asked_processes(values));
  options.store_server = launch::StoreServer::kWorkerProcess;
  options.worker_program = worker_or_its_place();
  options.master_addr = values.text("master-addr");
  if (values.given("master-port")) options.master_port = static_cast<int>(values.integer("master-port"));
  if (values.given("log-dir")) options.log_dir = values.text("log-dir");
  if (values.given("grace")) options.grace_after_failure = options.grace_after_stop = values.duration("grace");
  return launch::launch(options).exit_code;
}

}  // namespace lockstep::cli
