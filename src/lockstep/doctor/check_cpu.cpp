#include <unistd.h>

#include <fstream>

#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"
#include "lockstep/host/cpus.h"

namespace lockstep::doctor {
namespace {

std::string cpu_name(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) return std::string(trim(line.substr(line.find(':') + 1)));
  }
  return "unknown processor";
}

}  // namespace

Result check_cpu(const Machine& machine) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  const int usable = host::usable_cpus();
  Result result{"", Status::kOk, text(cpu_name(machine.root), ", ", usable, " of ", online, " CPU(s) usable"), "", ""};
  if (usable < online) {
    result.why = text("the affinity mask allows ", host::affinity_cpus(),
                      host::cpu_quota() ? text(", the control group ", *host::cpu_quota()) : "",
                      "; threads are counted by what is usable");
  }
  return result;
}

}  // namespace lockstep::doctor
