#include <algorithm>
#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/version.h"
#include "lockstep/config/command_specs.h"
#include "lockstep/config/help.h"

namespace lockstep::cli {

namespace {

void print(const std::string& words) {
  std::fputs(words.c_str(), stdout);
}

}  // namespace

int cmd_help(const Arguments& args) {
  const auto values = read_flags("help", args);
  if (!values) return 0;
  if (values->rest.empty()) {
    print(config::overview_help(config::command_specs()));
    return 0;
  }
  std::vector<std::string> names;
  for (const auto& spec : config::command_specs()) names.push_back(spec.name);
  const std::string& name = values->rest.front();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw ConfigError(config::unknown_name("command", name, names), "lockstep --help lists the commands");
  }
  print(config::command_help(config::command_spec(name), true));
  return 0;
}

int cmd_completion(const Arguments& args) {
  const auto values = read_flags("completion", args);
  if (!values) return 0;
  const bool one = values->rest.size() == 1;
  if (one && values->rest.front() == "bash") {
    print(config::bash_completion(config::command_specs()));
  } else if (one && values->rest.front() == "zsh") {
    print(config::zsh_completion(config::command_specs()));
  } else {
    throw ConfigError(
        text("lockstep completion: '", join(values->rest, " "), "' is not accepted; expected bash or zsh"));
  }
  return 0;
}

int cmd_man(const Arguments& args) {
  if (read_flags("man", args)) print(config::man_page(config::command_specs(), kVersion));
  return 0;
}

}  // namespace lockstep::cli
