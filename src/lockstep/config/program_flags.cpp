#include "lockstep/config/program_flags.h"

namespace lockstep::config {

CommandSpec program_spec() {
  const std::string category = "How it runs";
  return {
      .name = "program",
      .summary = "a program on the library Lockstep",
      .usage = "[FLAGS]",
      .description =
          "Trains with Lockstep, on one device or on many. It may also be started by lockstep run or torchrun, which "
          "then choose the number of processes.",
      .flags = {{.name = "nproc",
                 .kind = FlagKind::kInteger,
                 .value_name = "N",
                 .low = 1,
                 .high = 4096,
                 .fallback = "1",
                 .category = category,
                 .help = "ranks on this host; refused under a launcher, which has started them already"},
                {.name = "strategy",
                 .kind = FlagKind::kChoice,
                 .value_name = "NAME",
                 .choices = {"ddp", "dp"},
                 .fallback = "ddp",
                 .category = category,
                 .help = "ddp: a process a rank; dp: one process with a thread a rank"},
                {.name = "device",
                 .kind = FlagKind::kChoice,
                 .value_name = "KIND",
                 .choices = {"auto", "cpu", "cuda"},
                 .fallback = "auto",
                 .category = category,
                 .help = "auto takes a GPU for a single rank when there is a usable one"},
                {.name = "seed",
                 .kind = FlagKind::kInteger,
                 .value_name = "N",
                 .low = 0,
                 .high = kMaxWholeNumber,
                 .fallback = "0",
                 .category = category,
                 .help = "seed of weights and order, the same for every rank"}}};
}

}  // namespace lockstep::config
