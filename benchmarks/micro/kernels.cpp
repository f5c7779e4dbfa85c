// The CPU kernels against the limits of one core. Every line prints `share`: the fraction of the compute limit (fused
// multiply-adds of the plain algorithm) or of the memory limit (bytes that must move) that the kernel reaches.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "limits.h"
#include "lockstep/kernels/conv_relu_pool.h"
#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/kernels/optimizer.h"

namespace lockstep::benchmarks {
namespace {

using namespace lockstep::kernels;

std::vector<float> normal(std::int64_t size) {
  std::mt19937 random(1);
  std::normal_distribution<float> distribution;
  std::vector<float> out(static_cast<std::size_t>(size));
  for (float& value : out) value = distribution(random);
  return out;
}

/// The tutorial's first layer: 32 images of 3 x 32 x 32, 64 filters.
struct Tutorial {
  ConvReluPoolShape shape{32, 3, 32, 32, 64};
  std::vector<float> x = normal(32 * 3 * 32 * 32), w = normal(64 * 27), b = normal(64), dpooled = normal(32 * 64);
  std::vector<float> pooled = dpooled, dw = w, db = b, dx = x;
  std::vector<std::uint8_t> active = std::vector<std::uint8_t>(shape.active_bytes());

  void forward(CpuLevel level) {
    conv_relu_pool_forward(shape, x.data(), w.data(), b.data(), pooled.data(), active.data(), level);
  }
  void backward(CpuLevel level, bool with_dx) {
    conv_relu_pool_backward(shape, x.data(), w.data(), active.data(), dpooled.data(), dw.data(), db.data(),
                            with_dx ? dx.data() : nullptr, level);
  }
  double multiply_adds() const {
    return static_cast<double>(shape.images * shape.positions() * shape.filters * shape.taps());
  }
};

void report_compute(benchmark::State& state, const Tutorial& tutorial, double passes) {
  state.SetItemsProcessed(state.iterations() * tutorial.shape.images);
  state.counters["share"] = benchmark::Counter(passes * tutorial.multiply_adds() / limits().float_fma_per_second,
                                               benchmark::Counter::kIsIterationInvariantRate);
}

void conv_forward(benchmark::State& state, CpuLevel level) {
  Tutorial tutorial;
  for (auto _ : state) tutorial.forward(level);
  report_compute(state, tutorial, 1);
}

void conv_backward(benchmark::State& state, CpuLevel level, bool with_dx) {
  Tutorial tutorial;
  tutorial.forward(level);
  for (auto _ : state) tutorial.backward(level, with_dx);
  report_compute(state, tutorial, with_dx ? 2 : 1);
}

void conv_both(benchmark::State& state, CpuLevel level) {
  Tutorial tutorial;
  for (auto _ : state) {
    tutorial.forward(level);
    tutorial.backward(level, false);
  }
  report_compute(state, tutorial, 2);
}

/// `arrays` passes over `range(0)` floats; sizes below 16 MB are held against the second-level cache, which
/// those in the first level may exceed.
void report_memory(benchmark::State& state, int arrays) {
  const double bytes = static_cast<double>(state.range(0)) * sizeof(float) * arrays;
  state.SetItemsProcessed(state.iterations() * state.range(0));
  const double limit = bytes > 16e6 ? limits().bytes_per_second_dram : limits().bytes_per_second_l2;
  state.counters["share"] = benchmark::Counter(bytes / limit, benchmark::Counter::kIsIterationInvariantRate);
}

void sgd_momentum(benchmark::State& state) {
  auto values = normal(state.range(0)), buffer = values;
  const auto gradients = values;
  for (auto _ : state) {
    sgd_step<float>(values, gradients, buffer, {.lr = 1e-9, .momentum = 0.9, .weight_decay = 1e-4});
  }
  report_memory(state, 5);
}

void adamw(benchmark::State& state) {
  auto values = normal(state.range(0)), m = values;
  const auto gradients = values;
  std::vector<float> v(values.size(), 1.0F);
  for (auto _ : state) {
    adam_step<float>(values, gradients, m, v, {.lr = 1e-9, .weight_decay = 1e-4, .decoupled_weight_decay = true});
  }
  report_memory(state, 7);
}

void squares(benchmark::State& state) {
  const auto values = normal(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(sum_of_squares<float>(values));
  report_memory(state, 1);
}

void softmax_cross_entropy(benchmark::State& state) {
  const std::int64_t samples = 32, classes = state.range(0);
  const auto logits = normal(samples * classes);
  std::vector<float> dlogits(logits.size());
  const std::vector<std::int64_t> targets(static_cast<std::size_t>(samples), 1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(cross_entropy(samples, classes, logits.data(), targets.data(), 1.0, dlogits.data()));
  }
  state.SetItemsProcessed(state.iterations() * samples);
}

/// The limits themselves, for the record: float multiply-adds and bytes a second of one core.
void machine_limits(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(&limits());
  state.counters["fma_per_s"] = limits().float_fma_per_second;
  state.counters["l2_bytes_per_s"] = limits().bytes_per_second_l2;
  state.counters["dram_bytes_per_s"] = limits().bytes_per_second_dram;
}

BENCHMARK(machine_limits)->Iterations(1);
BENCHMARK_CAPTURE(conv_forward, avx512, CpuLevel::kAvx512);
BENCHMARK_CAPTURE(conv_forward, avx2, CpuLevel::kAvx2);
BENCHMARK_CAPTURE(conv_forward, baseline, CpuLevel::kBaseline);
BENCHMARK_CAPTURE(conv_backward, avx512, CpuLevel::kAvx512, false);
BENCHMARK_CAPTURE(conv_backward, avx2, CpuLevel::kAvx2, false);
BENCHMARK_CAPTURE(conv_backward, avx512_dx, CpuLevel::kAvx512, true);
BENCHMARK_CAPTURE(conv_both, avx512, CpuLevel::kAvx512);
BENCHMARK_CAPTURE(conv_both, avx2, CpuLevel::kAvx2);
BENCHMARK(sgd_momentum)->Arg(2442)->Arg(101770)->Arg(1 << 25);
BENCHMARK(adamw)->Arg(2442)->Arg(101770)->Arg(1 << 25);
BENCHMARK(squares)->Arg(101770)->Arg(1 << 25);
BENCHMARK(softmax_cross_entropy)->Arg(10)->Arg(1000);

}  // namespace
}  // namespace lockstep::benchmarks
