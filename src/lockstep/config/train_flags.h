#pragma once

#include "lockstep/config/flags.h"

namespace lockstep::config {

/// `lockstep train` and `lockstep compare` share one table of flags; each leaves a few out.
CommandSpec train_spec();
CommandSpec compare_spec();

}  // namespace lockstep::config
