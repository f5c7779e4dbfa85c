#pragma once

#include <filesystem>

#include "lockstep/config/resolve.h"

namespace lockstep::cli {

/// Looks at this machine. The driver is asked only with `look_for_gpus`, which takes about 20 ms where there is one.
config::Machine look_at_machine(bool look_for_gpus);

/// The machine that --device and --devices may choose from. Where the choice is ours (auto) and there is a GPU,
/// lockstep-worker says whether its LibTorch can use one at all; when it cannot, no GPU counts as visible. A GPU that
/// was asked for is left to the ranks to refuse.
config::Machine machine_for(const config::FlagValues& values);

/// lockstep-worker: $LOCKSTEP_WORKER, or the file of that name beside this program. Throws ConfigError when it is
/// missing or not executable.
std::filesystem::path find_worker();

}  // namespace lockstep::cli
