#pragma once

#include <filesystem>

#include "lockstep/config/resolve.h"

namespace lockstep::cli {

/// Looks at this machine. The driver is asked only with `look_for_gpus`, which takes about 20 ms where there is one.
config::Machine look_at_machine(bool look_for_gpus);

/// lockstep-worker: $LOCKSTEP_WORKER, or the file of that name beside this program. Throws ConfigError when it is
/// missing or not executable.
std::filesystem::path find_worker();

}  // namespace lockstep::cli
