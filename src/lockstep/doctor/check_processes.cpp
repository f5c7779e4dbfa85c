#include <sys/resource.h>

#include <fstream>

#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

// A rank has tens of threads (LibTorch's pools, loaders, CUDA), each of which counts.
constexpr long long kWantedTasks = 1024;

Result check_processes(const Machine& machine) {
  rlimit limit{};
  getrlimit(RLIMIT_NPROC, &limit);
  long long allowed = limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<long long>(limit.rlim_cur);
  std::string source = "ulimit -u";
  long long group_limit = 0;
  if (std::ifstream(machine.root / "sys/fs/cgroup/pids.max") >> group_limit && (allowed < 0 || group_limit < allowed)) {
    allowed = group_limit;
    source = "the control group";
  }
  if (allowed < 0) return {"", Status::kOk, "processes and threads are not limited", "", ""};
  Result result{"", Status::kOk, text(allowed, " processes and threads are allowed (", source, ")"), "", ""};
  if (allowed < kWantedTasks) {
    result.status = Status::kWarn;
    result.why = "a rank has tens of threads; at the limit, starting one fails with 'resource temporarily unavailable'";
    result.hint = "raise ulimit -u, or docker run --pids-limit=-1";
  }
  return result;
}

}  // namespace lockstep::doctor
