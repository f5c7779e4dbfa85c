#include "limits.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

#include "lockstep/kernels/cpu_level.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kRounds = 20;

/// CPU time of this thread, as the benchmarks' rates count it: other programs do not lower the limit.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Seconds of the fastest of kRounds runs.
template <typename Body>
double best_seconds(const Body& body) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double start = cpu_seconds();
    body();
    best = std::min(best, cpu_seconds() - start);
  }
  return best;
}

#if defined(__x86_64__)
constexpr std::int64_t kIterations = 200'000;

// Ten independent chains cover two units of latency four. The whole loop is assembly: no compiler can reorder it.
#define LOCKSTEP_CHAIN(reg, n) "vfmadd231ps %%" reg "mm0, %%" reg "mm0, %%" reg "mm" n "\n\t"
#define LOCKSTEP_FMA_LOOP(reg)                                                                                 \
  "vxorps %%xmm0, %%xmm0, %%xmm0\n\tvxorps %%xmm1, %%xmm1, %%xmm1\n\tvxorps %%xmm2, %%xmm2, %%xmm2\n\t"        \
  "vxorps %%xmm3, %%xmm3, %%xmm3\n\tvxorps %%xmm4, %%xmm4, %%xmm4\n\tvxorps %%xmm5, %%xmm5, %%xmm5\n\t"        \
  "vxorps %%xmm6, %%xmm6, %%xmm6\n\tvxorps %%xmm7, %%xmm7, %%xmm7\n\tvxorps %%xmm8, %%xmm8, %%xmm8\n\t"        \
  "vxorps %%xmm9, %%xmm9, %%xmm9\n\tvxorps %%xmm10, %%xmm10, %%xmm10\n\t"                                      \
  "1:\n\t" LOCKSTEP_CHAIN(reg, "1") LOCKSTEP_CHAIN(reg, "2") LOCKSTEP_CHAIN(reg, "3") LOCKSTEP_CHAIN(reg, "4") \
      LOCKSTEP_CHAIN(reg, "5") LOCKSTEP_CHAIN(reg, "6") LOCKSTEP_CHAIN(reg, "7") LOCKSTEP_CHAIN(reg, "8")      \
          LOCKSTEP_CHAIN(reg, "9") LOCKSTEP_CHAIN(reg, "10") "dec %0\n\tjnz 1b\n\tvzeroupper"
#define LOCKSTEP_CLOBBERS "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "cc"

std::int64_t multiply_adds_avx512() {
  std::int64_t left = kIterations;
  asm volatile(LOCKSTEP_FMA_LOOP("z") : "+r"(left)::LOCKSTEP_CLOBBERS);
  return kIterations * 10 * 16;
}

std::int64_t multiply_adds_avx2() {
  std::int64_t left = kIterations;
  asm volatile(LOCKSTEP_FMA_LOOP("y") : "+r"(left)::LOCKSTEP_CLOBBERS);
  return kIterations * 10 * 8;
}

/// Zero, and so an infinite share, where the CPU has no fused multiply-add.
double float_fma_per_second() {
  const auto level = kernels::best_cpu_level();
  if (level == kernels::CpuLevel::kBaseline) return 0;
  const auto run = level == kernels::CpuLevel::kAvx512 ? &multiply_adds_avx512 : &multiply_adds_avx2;
  std::int64_t count = 0;
  const double seconds = best_seconds([&] { count = run(); });
  return static_cast<double>(count) / seconds;
}
#else
double float_fma_per_second() {
  return 0;
}
#endif

/// Bytes read and written by the C library's copy, from one half of a buffer to the other.
double bytes_per_second(std::size_t bytes, int repeats) {
  std::vector<char> buffer(bytes, 1);
  const double seconds = best_seconds([&] {
    for (int r = 0; r < repeats; ++r) {
      std::memcpy(buffer.data(), buffer.data() + bytes / 2, bytes / 2);
      asm volatile("" ::"r"(buffer.data()) : "memory");
    }
  });
  return static_cast<double>(bytes) * repeats / seconds;
}

}  // namespace

const Limits& limits() {
  static const Limits measured{
      .float_fma_per_second = float_fma_per_second(),
      .bytes_per_second_l2 = bytes_per_second(std::size_t{512} << 10, 50),
      .bytes_per_second_dram = bytes_per_second(std::size_t{512} << 20, 1),
  };
  return measured;
}

}  // namespace lockstep::benchmarks
