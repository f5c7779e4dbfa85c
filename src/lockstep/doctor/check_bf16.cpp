#include <fstream>

#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {
namespace {

/// "native" when the processor has bf16 instructions (AMX or AVX-512), else "emulated".
std::string_view cpu_support(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("flags")) continue;
    for (const std::string& flag : split(line, ' ')) {
      if (flag == "avx512_bf16" || flag == "amx_bf16") return "native";
    }
    break;
  }
  return "emulated";
}

std::string_view name_of(host::Bf16Support support) {
  switch (support) {
    case host::Bf16Support::kNative:
      return "native";
    case host::Bf16Support::kEmulated:
      return "emulated";
    case host::Bf16Support::kNone:
      return "none";
  }
  return "unknown";
}

}  // namespace

Result check_bf16(const Machine& machine) {
  std::vector<std::string> devices;
  bool all_native = true;
  for (int index = 0; index < machine.num_visible_gpus(); ++index) {
    const host::Gpu& gpu = machine.visible_gpu(index);
    const auto support = host::bf16_support(gpu.capability_major);
    all_native = all_native && support == host::Bf16Support::kNative;
    devices.push_back(text("GPU ", index, " (", gpu.capability(), ") ", name_of(support)));
  }
  devices.push_back(text("CPU ", cpu_support(machine.root)));
  Result result{"", Status::kInfo, text("bf16: ", join(devices, ", ")), "", ""};
  if (!all_native) {
    result.why = "below compute capability 8.0 bf16 is converted to fp32 and back: slow, and some convolutions lack it";
    result.hint = "train in fp16 with loss scaling, or in fp32, on these cards";
  }
  return result;
}

}  // namespace lockstep::doctor
