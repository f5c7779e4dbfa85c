#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

Result check_driver(const Machine& machine) {
  const host::GpuInventory& gpus = machine.gpus;
  if (gpus.driver_version.empty()) return {"", Status::kSkip, "no NVIDIA driver is loaded", "", ""};
  return {"", Status::kOk,
          text("driver ", gpus.driver_version,
               gpus.driver_cuda_version.empty() ? "" : text(", serves CUDA up to ", gpus.driver_cuda_version)),
          "", ""};
}

}  // namespace lockstep::doctor
