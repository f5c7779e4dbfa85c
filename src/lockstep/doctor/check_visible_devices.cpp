#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

Result check_visible_devices(const Machine& machine) {
  const host::VisibleDevices& visible = machine.visible;
  const std::size_t total = machine.gpus.gpus.size();
  if (total == 0) {
    return {"", Status::kSkip,
            visible.is_limited ? text("CUDA_VISIBLE_DEVICES=", visible.value, ", but there is no GPU")
                               : std::string("there is no GPU"),
            "", ""};
  }
  std::string what = text(visible.gpus.size(), " of ", total, " GPU(s) visible to CUDA");
  if (visible.is_limited) what += text(" (CUDA_VISIBLE_DEVICES='", visible.value, "')");
  Result result{"", Status::kOk, std::move(what), "", ""};
  if (!visible.problem.empty()) {
    // Hiding every card by an empty value is a usual way to ask for the CPU.
    result.status = visible.gpus.empty() && trim(visible.value).empty() ? Status::kInfo : Status::kWarn;
    result.why = visible.problem;
    result.hint = text("indices here are 0 to ", total - 1, "; unset CUDA_VISIBLE_DEVICES to see all");
  } else if (!visible.order_is_sure) {
    result.status = Status::kWarn;
    result.why =
        "the cards differ, and CUDA counts the fastest first while nvidia-smi counts by bus: index 0 may be "
        "another card than you think";
    result.hint = "export CUDA_DEVICE_ORDER=PCI_BUS_ID";
  }
  return result;
}

}  // namespace lockstep::doctor
