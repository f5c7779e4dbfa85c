#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/config/flags.h"

namespace lockstep::config {

/// `lockstep --help`: the commands, one line each.
std::string overview_help(const std::vector<CommandSpec>& commands);

/// `lockstep <command> --help`, with its sub-commands; with `full` the further sentences of each flag too (`lockstep
/// help <command>`). `program` is the program's name where that is not the command lockstep.
std::string command_help(const CommandSpec& command, bool full, std::string_view program = "lockstep");

/// The man page lockstep(1), in man(7) macros.
std::string man_page(const std::vector<CommandSpec>& commands, const std::string& version);

/// Completion scripts, to be sourced: commands, flags of each command, choices of each flag, files for paths.
std::string bash_completion(const std::vector<CommandSpec>& commands);
std::string zsh_completion(const std::vector<CommandSpec>& commands);

}  // namespace lockstep::config
