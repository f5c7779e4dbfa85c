#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/version.h"
#include "lockstep/config/flags.h"

namespace lockstep::cli {

namespace {

struct Entry {
  const char* name;
  int (*run)(const Arguments&);
};

constexpr Entry kEntries[] = {
    {"train", cmd_train}, {"compare", cmd_compare},       {"run", cmd_run}, {"data", cmd_data}, {"doctor", cmd_doctor},
    {"help", cmd_help},   {"completion", cmd_completion}, {"man", cmd_man},
};

int dispatch(const Arguments& args) {
  if (args.empty() || args.front() == "--help" || args.front() == "-h") return cmd_help({});
  if (args.front() == "--version") {
    std::puts(text("lockstep ", kVersion).c_str());
    return 0;
  }
  std::vector<std::string> names;
  for (const auto& entry : kEntries) {
    if (args.front() == entry.name) return entry.run({args.begin() + 1, args.end()});
    names.emplace_back(entry.name);
  }
  const std::string what = args.front().starts_with("-") ? "flag before a command:" : "command";
  throw ConfigError(config::unknown_name(what, args.front(), names), text("the commands are ", join(names, ", ")));
}

}  // namespace

}  // namespace lockstep::cli

namespace {

// 2 is the code of errors before anything was started, the machine's refusals (a full disk, a path too long) included.
int run(int argc, char** argv) {
  try {
    return lockstep::cli::dispatch({argv + 1, argv + argc});
  } catch (const lockstep::SystemError& error) {
    lockstep::log::error(error.what());
    return 2;
  } catch (const lockstep::Error& error) {
    lockstep::log::error(error.what());
    return error.exit_code();
  } catch (const std::filesystem::filesystem_error& error) {
    lockstep::log::error(error.what());
    return 2;
  } catch (const std::exception& error) {
    lockstep::log::error(error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  // A reader that has had enough (`| head`) is no reason to end a training run.
  std::signal(SIGPIPE, SIG_IGN);
  const int code = run(argc, argv);
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (errno != EPIPE) lockstep::log::error("standard output could not be written: what was asked for is incomplete");
  return code == 0 && errno != EPIPE ? 1 : code;
}
