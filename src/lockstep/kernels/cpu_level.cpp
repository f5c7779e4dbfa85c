#include "lockstep/kernels/cpu_level.h"

namespace lockstep::kernels {

CpuLevel best_cpu_level() noexcept {
#if defined(__x86_64__)
  static const CpuLevel level = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 && avx512 ? CpuLevel::kAvx512 : avx2 ? CpuLevel::kAvx2 : CpuLevel::kBaseline;
  }();
  return level;
#else
  return CpuLevel::kBaseline;
#endif
}

const char* to_string(CpuLevel level) noexcept {
  switch (level) {
    case CpuLevel::kAvx512:
      return "avx512";
    case CpuLevel::kAvx2:
      return "avx2";
    case CpuLevel::kBaseline:
      break;
  }
  return "baseline";
}

}  // namespace lockstep::kernels
