#include "limits.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lockstep/kernels/cpu_level.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kRounds = 20;

/// Seconds of the fastest of kRounds runs.
template <typename Body>
double best_seconds(const Body& body) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

constexpr std::int64_t kIterations = 200'000;
constexpr int kChains = 10;  // independent chains: two units, latency four

#if defined(__x86_64__)
// Inline assembly, so that the compiler cannot shorten the chains.
__attribute__((target("avx512f"))) std::int64_t multiply_adds_avx512() {
  __m512 sum[kChains];
  for (auto& s : sum) s = _mm512_setzero_ps();
  const __m512 factor = _mm512_set1_ps(0.5F);
  for (std::int64_t i = 0; i < kIterations; ++i) {
#pragma GCC unroll 10
    for (int c = 0; c < kChains; ++c) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum[c]) : "v"(factor));
  }
  return kIterations * kChains * 16;
}

__attribute__((target("avx2,fma"))) std::int64_t multiply_adds_avx2() {
  __m256 sum[kChains];
  for (auto& s : sum) s = _mm256_setzero_ps();
  const __m256 factor = _mm256_set1_ps(0.5F);
  for (std::int64_t i = 0; i < kIterations; ++i) {
#pragma GCC unroll 10
    for (int c = 0; c < kChains; ++c) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sum[c]) : "x"(factor));
  }
  return kIterations * kChains * 8;
}

std::int64_t multiply_adds_baseline() {
  __m128 sum[kChains];
  for (auto& s : sum) s = _mm_setzero_ps();
  const __m128 factor = _mm_set1_ps(0.5F);
  for (std::int64_t i = 0; i < kIterations; ++i) {
#pragma GCC unroll 10
    for (int c = 0; c < kChains; ++c) asm volatile("mulps %1, %0\n\taddps %1, %0" : "+x"(sum[c]) : "x"(factor));
  }
  return kIterations * kChains * 4;
}

double float_fma_per_second() {
  const auto level = kernels::best_cpu_level();
  const auto run = level == kernels::CpuLevel::kAvx512 ? &multiply_adds_avx512
                   : level == kernels::CpuLevel::kAvx2 ? &multiply_adds_avx2
                                                       : &multiply_adds_baseline;
  std::int64_t count = 0;
  const double seconds = best_seconds([&] { count = run(); });
  return static_cast<double>(count) / seconds;
}
#else
double float_fma_per_second() {
  return 0;
}  // share_of_limit is then infinite: no figure for this CPU
#endif

double bytes_per_second(std::size_t bytes, int repeats) {
  std::vector<double> values(bytes / sizeof(double), 1.0);
  const double seconds = best_seconds([&] {
    for (int r = 0; r < repeats; ++r) {
      for (double& value : values) value *= 1.0000001;
      asm volatile("" ::"r"(values.data()) : "memory");
    }
  });
  return 2.0 * static_cast<double>(bytes) * repeats / seconds;
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
