#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

/// The sub-commands. `args` are the words after the sub-command's name. Each returns the process exit code and may
/// throw lockstep::Error, which main() prints as "lockstep: error: ..." and turns into its exit code.
using Arguments = std::vector<std::string>;

int cmd_train(const Arguments& args);
int cmd_compare(const Arguments& args);
int cmd_run(const Arguments& args);
int cmd_data(const Arguments& args);
int cmd_doctor(const Arguments& args);
int cmd_help(const Arguments& args);
int cmd_completion(const Arguments& args);
int cmd_man(const Arguments& args);

}  // namespace lockstep::cli
