#include <array>

#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {
namespace {

/// Variables that change how training runs and that people forget they have set.
constexpr std::array kTelling{"OMP_NUM_THREADS", "MKL_NUM_THREADS",    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER",
                              "NCCL_DEBUG",      "NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE",     "NCCL_SHM_DISABLE",
                              "NCCL_IB_DISABLE", "LD_PRELOAD",         "LD_LIBRARY_PATH",      "LIBTORCH"};

}  // namespace

Result check_environment(const Machine& machine) {
  std::vector<std::string> found;
  for (const char* name : kTelling) {
    if (const auto value = machine.environment(name)) found.push_back(text(name, '=', *value));
  }
  Result result{"", found.empty() ? Status::kOk : Status::kInfo,
                found.empty() ? "no variable that changes training is set" : join(found, ", "), "", ""};
  // A shell inside a job has these; left over in another shell they make every program wait for ranks that never come.
  if (machine.environment("RANK") && machine.environment("WORLD_SIZE")) {
    result.status = Status::kWarn;
    result.what = text("RANK=", *machine.environment("RANK"), " and WORLD_SIZE=", *machine.environment("WORLD_SIZE"),
                       " are set", found.empty() ? "" : "; ", join(found, ", "));
    result.why = "a program of your own started from here takes itself for one rank of a running job";
    result.hint = "unset RANK WORLD_SIZE LOCAL_RANK, unless this shell is part of a job";
  }
  return result;
}

}  // namespace lockstep::doctor
