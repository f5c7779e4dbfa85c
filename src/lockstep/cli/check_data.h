#pragma once

#include "lockstep/config/flags.h"

namespace lockstep::cli {

/// A look at --data before anything starts: its form, whether its folder is there, and whether synthetic images fit
/// into memory when each of `processes` makes its own. What is in the files is for the ranks to find. Throws
/// ConfigError, DataError that name flag or line of the configuration file.
void check_data(const config::FlagValues& values, int processes);

}  // namespace lockstep::cli
