#pragma once

#include "lockstep/base/world.h"
#include "lockstep/config/flags.h"

namespace lockstep::config {

/// The flags of `lockstep run`: torchrun's names and values where it has them.
CommandSpec run_spec();

/// Takes flags that the command line does not have from torchrun's PET_<FLAG> variables (PET_NPROC_PER_NODE, ...).
/// Switches are 0 or 1 there. Throws ConfigError that names the variable.
void add_pet_variables(FlagValues& values, const EnvironmentReader& environment);

}  // namespace lockstep::config
