#include <sys/utsname.h>

#include <fstream>

#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {
namespace {

/// PRETTY_NAME of /etc/os-release, without quotes.
std::string distribution(const std::filesystem::path& root) {
  std::ifstream file(root / "etc/os-release");
  std::string line;
  while (std::getline(file, line)) {
    constexpr std::string_view kKey = "PRETTY_NAME=\"";
    if (line.starts_with(kKey) && line.ends_with('"')) return line.substr(kKey.size(), line.size() - kKey.size() - 1);
  }
  return "unknown distribution";
}

}  // namespace

Result check_system(const Machine& machine) {
  utsname name{};
  uname(&name);
  return {"", Status::kOk,
          text(distribution(machine.root), ", ", name.sysname, ' ', name.release, ", ", name.machine, ", host ",
               name.nodename),
          "", ""};
}

}  // namespace lockstep::doctor
