#pragma once

namespace lockstep::kernels {

/// Instruction sets that the kernels are compiled for. The binary itself needs no more than baseline x86-64.
enum class CpuLevel { kBaseline, kAvx2, kAvx512 };

/// The best level that this CPU and operating system can run.
CpuLevel best_cpu_level() noexcept;

/// "baseline", "avx2", "avx512".
const char* to_string(CpuLevel level) noexcept;

}  // namespace lockstep::kernels
