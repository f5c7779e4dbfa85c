#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

Result check_kernels(const Machine& machine) {
  const Probe& probe = machine.probe;
  if (!probe.answered() || probe.cuda != CudaState::kUsable) {
    return {"", Status::kSkip, "there is no GPU to run a kernel on", "", ""};
  }
  std::vector<std::string> failures;
  bool is_wrong_architecture = false;
  for (const ProbedDevice& device : probe.devices) {
    if (device.kernel == "ok") continue;
    std::string card = text("GPU ", device.index);
    if (device.index < machine.num_visible_gpus()) {
      const host::Gpu& gpu = machine.visible_gpu(device.index);
      card += text(" (", gpu.name, ", compute capability ", gpu.capability(), ")");
    }
    failures.push_back(text(card, ": ", device.kernel));
    for (const char* sign : {"no kernel image", "invalid device function"}) {
      if (device.kernel.find(sign) != std::string::npos) is_wrong_architecture = true;
    }
  }
  if (failures.empty()) {
    return {"", Status::kOk, text("a kernel ran correctly on each of ", probe.devices.size(), " GPU(s)"), "", ""};
  }
  return {"", Status::kFail, join(failures, "; "),
          is_wrong_architecture ? "LibTorch holds no code for this compute capability: the card is older or newer than "
                                  "this LibTorch was built for"
                                : "a kernel as simple as a sum does not run",
          is_wrong_architecture ? "take a LibTorch that was built for it: older cards need a CUDA 12 build "
                                  "(torch 2.10 or earlier), newer ones a newer LibTorch"
                                : "dmesg | grep -i xid; try another card with CUDA_VISIBLE_DEVICES"};
}

}  // namespace lockstep::doctor
