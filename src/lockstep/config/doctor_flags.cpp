#include "lockstep/config/doctor_flags.h"

namespace lockstep::config {

CommandSpec doctor_spec() {
  return {
      .name = "doctor",
      .summary = "say whether this machine is ready to train, and what is missing and why",
      .usage = "doctor [--json] [--require gpus=N] [--run-dir DIR]",
      .description =
          "Looks at the system, the GPUs, the driver, LibTorch and its CUDA part, and prints each finding "
          "with its cause and the next step. Runs where LibTorch or CUDA cannot even be loaded. Exits 0 "
          "when training on what is there works, 1 when something fails or a requirement is not met.",
      .flags = {{.name = "json", .kind = FlagKind::kSwitch, .category = "Doctor", .help = "print one JSON document"},
                {.name = "require",
                 .kind = FlagKind::kText,
                 .value_name = "gpus=N",
                 .category = "Doctor",
                 .help = "fail unless at least N GPUs can be trained on"},
                {.name = "run-dir",
                 .kind = FlagKind::kPath,
                 .value_name = "DIR",
                 .fallback = "runs",
                 .category = "Doctor",
                 .help = "where runs will be kept: its disk is looked at"}},
      .examples = {"lockstep doctor", "lockstep doctor --json --require gpus=2"}};
}

}  // namespace lockstep::config
