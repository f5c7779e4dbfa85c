#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

// The driver itself keeps up to 0.6 GiB of a large card.
constexpr std::uint64_t kIdleBytes = std::uint64_t{1} << 30;

Result check_gpu_memory(const Machine& machine) {
  if (machine.num_visible_gpus() == 0) return {"", Status::kSkip, "no GPU is visible", "", ""};
  std::vector<std::string> cards;
  std::vector<std::string> in_use;
  for (int index = 0; index < machine.num_visible_gpus(); ++index) {
    const host::Gpu& gpu = machine.visible_gpu(index);
    cards.push_back(text(index, ": ", format_bytes(gpu.memory_total_bytes - gpu.memory_used_bytes), " free of ",
                         format_bytes(gpu.memory_total_bytes)));
    if (gpu.memory_used_bytes > kIdleBytes) in_use.push_back(text(index));
  }
  Result result{"", Status::kOk, join(cards, ", "), "", ""};
  if (!in_use.empty()) {
    result.status = Status::kWarn;
    result.why = text("other processes hold memory on GPU ", join(in_use, ", "));
    result.hint = "nvidia-smi lists them; an empty list means a container or a process that died while it held memory";
  }
  return result;
}

}  // namespace lockstep::doctor
