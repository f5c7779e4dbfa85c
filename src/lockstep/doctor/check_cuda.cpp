#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {
namespace {

/// The number before the point; 0 when there is none.
int major_of(const std::string& version) {
  long long value = 0;
  return parse_number(split(version, '.').front(), value) ? static_cast<int>(value) : 0;
}

/// LibTorch's CUDA library is loaded and finds no GPU: why, as far as versions tell.
void explain_no_usable_gpu(const Machine& machine, Result& result) {
  const int needed = major_of(machine.probe.cuda_version);
  const int served = major_of(machine.gpus.driver_cuda_version);
  if (needed > 0 && served > 0 && needed > served) {
    result.why = text("LibTorch needs CUDA ", machine.probe.cuda_version, ", the driver ", machine.gpus.driver_version,
                      " serves only up to ", machine.gpus.driver_cuda_version);
    result.hint =
        "update the driver (580 or newer serves CUDA 13), or run scripts/setup.sh again, which takes the "
        "LibTorch that fits the driver";
    return;
  }
  result.why = machine.probe.cuda_error;
  result.hint = "the driver may be stuck: dmesg, nvidia-smi; in a container, look at --gpus and its cgroup";
}

}  // namespace

Result check_cuda(const Machine& machine) {
  const Probe& probe = machine.probe;
  if (!probe.answered()) return {"", Status::kSkip, "LibTorch does not load", "", ""};
  // Where no GPU is to be had anyway, a missing CUDA is no fault.
  const bool matters = machine.num_visible_gpus() > 0;
  Result result{"", matters ? Status::kFail : Status::kInfo, "", "", ""};
  switch (probe.cuda) {
    case CudaState::kUsable:
      result.status = Status::kOk;
      result.what = text("LibTorch's CUDA", probe.cuda_version.empty() ? "" : text(" ", probe.cuda_version), " sees ",
                         probe.devices.size(), " GPU(s)");
      if (static_cast<int>(probe.devices.size()) < machine.num_visible_gpus()) {
        result.status = Status::kWarn;
        result.why = text("the driver shows ", machine.num_visible_gpus(), " visible GPU(s)");
        result.hint = "a card in use exclusively, a MIG slice or a control group can hide one from CUDA";
      }
      return result;
    case CudaState::kCpuOnlyLibTorch:
      result.what = "this LibTorch is built for the CPU only";
      if (matters) {
        result.why = text("there is no libtorch_cuda.so beside ", probe.loaded("libtorch_cpu.so"),
                          ", so the GPUs of this machine cannot be used");
        result.hint = "run scripts/setup.sh without LIBTORCH, or set LIBTORCH to a LibTorch for CUDA";
      }
      return result;
    case CudaState::kLibraryNotLoaded:
      result.what = "LibTorch has a CUDA library, but it does not load";
      result.why = text(probe.cuda_library, " is not among the ", probe.loaded_objects.size(),
                        " libraries in the process: ", probe.cuda_error);
      result.hint =
          "the libraries of the nvidia-* wheels must lie beside torch (site-packages/nvidia/*/lib) or in "
          "LD_LIBRARY_PATH. Programs with lockstep::main load it by themselves; one that uses LibTorch alone needs "
          "-Wl,--no-as-needed -ltorch_cuda";
      return result;
    case CudaState::kNoUsableGpu:
      result.what = "LibTorch's CUDA is loaded and finds no usable GPU";
      if (matters) {
        explain_no_usable_gpu(machine, result);
      } else {
        result.why = machine.gpus.gpus.empty() ? "this machine has none" : "CUDA_VISIBLE_DEVICES hides them";
      }
      return result;
  }
  return result;
}

}  // namespace lockstep::doctor
