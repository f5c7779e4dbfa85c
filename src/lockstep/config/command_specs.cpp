#include "lockstep/config/command_specs.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/data_flags.h"
#include "lockstep/config/doctor_flags.h"
#include "lockstep/config/run_flags.h"
#include "lockstep/config/train_flags.h"

namespace lockstep::config {

namespace {

CommandSpec completion_spec() {
  return {.name = "completion",
          .summary = "print a completion script for bash or zsh",
          .usage = "completion bash|zsh",
          .description = "Prints a script that completes commands, flags and their choices.",
          .flags = {},
          .examples = {"source <(lockstep completion bash)"},
          .rest_name = "SHELL"};
}

CommandSpec man_spec() {
  return {.name = "man",
          .summary = "print the manual page",
          .usage = "man",
          .description = "Prints the manual page lockstep(1).",
          .flags = {},
          .examples = {"lockstep man | man -l -"}};
}

CommandSpec help_spec() {
  return {.name = "help",
          .summary = "explain a command and its flags",
          .usage = "help [COMMAND]",
          .description = "Explains a command and each of its flags.",
          .flags = {},
          .rest_name = "COMMAND"};
}

}  // namespace

const std::vector<CommandSpec>& command_specs() {
  static const std::vector<CommandSpec> kSpecs{train_spec(),  compare_spec(), run_spec(),        data_spec(),
                                               doctor_spec(), help_spec(),    completion_spec(), man_spec()};
  return kSpecs;
}

const CommandSpec& command_spec(std::string_view name) {
  const auto& specs = command_specs();
  const auto found = std::find_if(specs.begin(), specs.end(), [&](const auto& spec) { return spec.name == name; });
  LOCKSTEP_CHECK(found != specs.end());
  return *found;
}

const CommandSpec& subcommand_spec(std::string_view command, std::string_view name) {
  const auto& specs = command_spec(command).subcommands;
  const std::string whole = text(command, " ", name);
  const auto found = std::find_if(specs.begin(), specs.end(), [&](const auto& spec) { return spec.name == whole; });
  LOCKSTEP_CHECK(found != specs.end());
  return *found;
}

}  // namespace lockstep::config
