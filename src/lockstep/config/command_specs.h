#pragma once

#include <vector>

#include "lockstep/config/flags.h"

namespace lockstep::config {

/// The commands whose flags are defined here, in the order in which `lockstep --help` shows them.
const std::vector<CommandSpec>& command_specs();

/// The spec of one command; the name must exist.
const CommandSpec& command_spec(std::string_view name);

/// The spec of `lockstep <command> <name>`; both must exist.
const CommandSpec& subcommand_spec(std::string_view command, std::string_view name);

}  // namespace lockstep::config
