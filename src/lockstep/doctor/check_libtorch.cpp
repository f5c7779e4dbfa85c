#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

Result check_libtorch(const Machine& machine) {
  const Probe& probe = machine.probe;
  if (!probe.answered()) return {"", Status::kFail, "LibTorch does not load", probe.failure, probe.hint};
  return {"", Status::kOk,
          text("LibTorch ", probe.torch, ", ", probe.threads, " thread(s)",
               probe.cpu_capability.empty() ? "" : text(", CPU code for ", probe.cpu_capability)),
          "", ""};
}

}  // namespace lockstep::doctor
