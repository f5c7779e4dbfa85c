#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/commands.h"

namespace {

struct Entry {
  const char* name;
  int (*run)(const lockstep::cli::Arguments&);
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> kEntries{
#ifdef LOCKSTEP_COMMAND_train
      {"train", lockstep::cli::cmd_train},
#endif
#ifdef LOCKSTEP_COMMAND_compare
      {"compare", lockstep::cli::cmd_compare},
#endif
#ifdef LOCKSTEP_COMMAND_run
      {"run", lockstep::cli::cmd_run},
#endif
#ifdef LOCKSTEP_COMMAND_data
      {"data", lockstep::cli::cmd_data},
#endif
#ifdef LOCKSTEP_COMMAND_doctor
      {"doctor", lockstep::cli::cmd_doctor},
#endif
  };
  return kEntries;
}

int dispatch(const std::vector<std::string>& args) {
  std::vector<std::string> names;
  for (const auto& entry : entries()) {
    if (!args.empty() && args.front() == entry.name) return entry.run({args.begin() + 1, args.end()});
    names.emplace_back(entry.name);
  }
  throw lockstep::ConfigError(lockstep::text("expected a command: ", lockstep::join(names, ", ")));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return dispatch({argv + 1, argv + argc});
  } catch (const lockstep::Error& error) {
    lockstep::log::error(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    lockstep::log::error(error.what());
    return 1;
  }
}
