#include "lockstep/cli/command_line.h"

#include <cstdio>

#include "lockstep/base/text.h"
#include "lockstep/config/command_specs.h"
#include "lockstep/config/help.h"

namespace lockstep::cli {

std::optional<config::FlagValues> read_flags(std::string_view command, const std::vector<std::string>& args) {
  const config::CommandSpec& spec = config::command_spec(command);
  config::FlagValues values = config::parse_flags(spec, args);
  if (values.help_requested) {
    std::fputs(config::command_help(spec, false).c_str(), stdout);
    return std::nullopt;
  }
  if (spec.find("config") != nullptr && values.given("config")) config::add_config_file(values, values.text("config"));
  return values;
}

std::string shell_line(std::string_view command, const std::vector<std::string>& args) {
  std::string line = text("lockstep ", command);
  for (const auto& arg : args) {
    const bool plain = !arg.empty() && arg.find_first_not_of(
                                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                           "0123456789-_=+./,:@%") == std::string::npos;
    std::string quoted = "'";
    for (const char c : arg) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += text(" ", plain ? arg : text(quoted, "'"));
  }
  return line;
}

}  // namespace lockstep::cli
