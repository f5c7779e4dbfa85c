#include "lockstep/config/run_flags.h"

#include <cctype>

#include "lockstep/base/text.h"

namespace lockstep::config {

namespace {

constexpr double kMaxProcesses = 1024;

Flag nproc_flag(const char* name, const char* help) {
  return {.name = name,
          .kind = FlagKind::kInteger,
          .value_name = "N",
          .low = 1,
          .high = kMaxProcesses,
          .choices = {"auto", "cpu", "gpu"},
          .category = "Processes",
          .help = help};
}

std::vector<Flag> process_flags() {
  Flag nproc = nproc_flag("nproc-per-node", "how many processes to start");
  nproc.fallback_note = std::string("1");  // a plain "1" sets off a false -Wrestrict in GCC 12
  nproc.details =
      "gpu: one for each visible GPU; cpu: one for each usable CPU; auto: gpu where there is one, else cpu.";
  return {nproc,
          nproc_flag("nproc", "the same, shorter"),
          {.name = "nnodes",
           .kind = FlagKind::kChoice,
           .value_name = "N",
           .choices = {"1", "1:1"},
           .fallback = "1",
           .category = "Processes",
           .help = "how many machines; this version runs on one"},
          {.name = "node-rank",
           .kind = FlagKind::kChoice,
           .value_name = "R",
           .choices = {"0"},
           .fallback = "0",
           .category = "Processes",
           .help = "which of the machines this is"},
          {.name = "standalone",
           .kind = FlagKind::kSwitch,
           .fallback = "false",
           .category = "Processes",
           .help = "one machine by itself, which is so anyway; for torchrun's command lines"},
          {.name = "no-python",
           .kind = FlagKind::kSwitch,
           .fallback = "false",
           .category = "Processes",
           .help = "no effect: the program is started as it is; for torchrun's command lines"}};
}

std::vector<Flag> job_flags() {
  return {{.name = "master-addr",
           .kind = FlagKind::kText,
           .value_name = "ADDRESS",
           .fallback = "127.0.0.1",
           .category = "Meeting point",
           .help = "address of this machine at which the processes meet",
           .details = "An IPv4 address or a name that resolves to one."},
          {.name = "master-port",
           .kind = FlagKind::kInteger,
           .value_name = "PORT",
           .low = 1,
           .high = 65535,
           .fallback_note = "a free port, held from the start",
           .category = "Meeting point",
           .help = "port at which the processes meet"},
          {.name = "max-restarts",
           .kind = FlagKind::kChoice,
           .value_name = "N",
           .choices = {"0"},
           .fallback = "0",
           .category = "Failure and stop",
           .help = "how often to start again after a failure; this version does not"},
          {.name = "grace",
           .kind = FlagKind::kDuration,
           .value_name = "DURATION",
           .fallback_note = "1s after a failure, 30s after a stop signal",
           .category = "Failure and stop",
           .help = "how long processes may take to end by themselves before they are killed"},
          {.name = "log-dir",
           .kind = FlagKind::kPath,
           .value_name = "DIR",
           .fallback_note = "nothing is kept",
           .category = "Output",
           .help = "keep DIR/attempt_0/<rank>/{stdout.log,stderr.log} and DIR/launcher.log"}};
}

std::string pet_name(const std::string& flag) {
  std::string name = "PET_";
  for (const char c : flag) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

CommandSpec run_spec() {
  CommandSpec spec{
      .name = "run",
      .summary = "start any program on several processes, with torchrun's environment",
      .usage = "run [FLAGS] [--] PROGRAM [ARGUMENTS...]",
      .description =
          "Starts PROGRAM once for each rank, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the "
          "other "
          "variables that torchrun sets, shows each line of output with its rank, and ends every process of the job "
          "when one fails, naming the first that did. Words after PROGRAM reach it untouched. Each flag may also come "
          "from torchrun's variable PET_<FLAG>; the command line wins.\n\n"
          "Exits 0 when all ranks did, with the code of the first rank that failed or 128 + its signal, with 130, 143, "
          "129 or 131 after SIGINT, SIGTERM, SIGHUP or SIGQUIT, and with 2 when nothing could be started.",
      .flags = process_flags(),
      .examples = {"lockstep run --nproc-per-node 2 -- ./my_program --epochs 5",
                   "lockstep run --nproc-per-node gpu -- python3 train.py"},
      .rest_name = "PROGRAM [ARGUMENTS...]"};
  for (auto& flag : job_flags()) spec.flags.push_back(std::move(flag));
  return spec;
}

void add_pet_variables(FlagValues& values, const EnvironmentReader& environment) {
  // The two names of one flag: the command line's wins under either.
  const bool nproc_given = values.given("nproc-per-node") || values.given("nproc");
  for (const auto& flag : values.spec().flags) {
    // --nproc and --grace are ours: torchrun has no variable for them.
    if (flag.name == "nproc" || flag.name == "grace" || values.given(flag.name)) continue;
    if (flag.name == "nproc-per-node" && nproc_given) continue;
    const std::string name = pet_name(flag.name);
    auto value = environment(name.c_str());
    if (!value) continue;
    if (flag.kind == FlagKind::kSwitch && (*value == "0" || *value == "1")) value = *value == "1" ? "true" : "false";
    values.set(flag, *value, name, name);
  }
}

}  // namespace lockstep::config
