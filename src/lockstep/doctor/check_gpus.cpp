#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

Result check_gpus(const Machine& machine) {
  const host::GpuInventory& inventory = machine.gpus;
  if (inventory.gpus.empty()) {
    // Without a driver nothing was to be expected; with one, something is broken.
    const bool expected =
        !inventory.driver_version.empty() || inventory.why_none.find("on the PCI bus, but") != std::string::npos;
    return {"", expected ? Status::kWarn : Status::kInfo, "no NVIDIA GPU; training uses the CPU", inventory.why_none,
            inventory.hint};
  }
  std::vector<std::string> cards;
  for (const host::Gpu& gpu : inventory.gpus) {
    cards.push_back(text(gpu.index, ": ", gpu.name, " (",
                         gpu.memory_total_bytes == 0 ? "memory unknown" : format_bytes(gpu.memory_total_bytes),
                         ", compute capability ", gpu.capability(), ")"));
  }
  Result result{"", Status::kOk, text(cards.size(), " GPU(s): ", join(cards, ", ")), "", ""};
  if (!inventory.problems.empty()) {
    result.status = Status::kWarn;
    result.why = join(inventory.problems, "; ");
    result.hint = "dmesg | grep -i xid names the fault; a card off the bus needs a reboot or a new seat";
  }
  return result;
}

}  // namespace lockstep::doctor
