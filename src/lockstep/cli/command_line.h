#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/flags.h"

namespace lockstep::cli {

/// Parses the flags of a command that is in config::command_specs(), and its --config file. nullopt when --help was
/// asked for, which is then printed. Throws ConfigError.
std::optional<config::FlagValues> read_flags(std::string_view command, const std::vector<std::string>& args);

/// The command line as it could be typed again, quoted for a shell.
std::string shell_line(std::string_view command, const std::vector<std::string>& args);

}  // namespace lockstep::cli
