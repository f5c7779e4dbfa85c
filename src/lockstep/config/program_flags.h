#pragma once

#include "lockstep/config/flags.h"

namespace lockstep::config {

/// The flags that every program on lockstep::main takes.
CommandSpec program_spec();

}  // namespace lockstep::config
