// What the sharded strategies save, by LibTorch's own count of allocated bytes, on GPT-2 (124M).
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include "dist/rank_threads.h"
#include "lockstep/models/gpt2.h"
#include "lockstep/models/loss.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/engine.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;  // NOLINT(google-build-using-namespace)
using parallel::Sharding;

constexpr int kWorld = 2;

/// Bytes of tensors that this thread has allocated since it began to count.
class AllocatedBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    live += size;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t live = 0, peak = 0;
};

struct Bytes {
  std::int64_t parameters = 0, state = 0, largest_bucket = 0;
  std::int64_t in_step = 0;  ///< most that a step held beyond what there was before it
};

Bytes bytes_of_a_step(comm::Communicator& communicator, Sharding sharding) {
  auto allocated = std::make_shared<AllocatedBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, allocated);
  models::Gpt2 model(models::TokenShape{}, {});
  optim::Adam optimizer(model.parameters(), {});
  const auto strategy = parallel::make_strategy(communicator, sharding, {});
  train::Engine engine(model, optimizer, *strategy, {});
  const auto tokens = at::arange(8, at::kLong).view({1, 8});

  Bytes bytes;
  for (const auto& parameter : model.parameters()) bytes.parameters += static_cast<std::int64_t>(parameter.nbytes());
  for (int step = 0; step < 2; ++step) {
    const auto before = allocated->peak = allocated->live;
    engine.micro_step(8, true,
                      [&] { return models::cross_entropy(model.forward(tokens).flatten(0, 1), tokens.flatten()); });
    bytes.in_step = allocated->peak - before;  // of the last step: the first allocates the state
  }
  for (const auto& state : optimizer.state()) bytes.state += static_cast<std::int64_t>(state.tensor.nbytes());
  for (const auto& bucket : strategy->statistics().buckets) {
    bytes.largest_bucket = std::max(bytes.largest_bucket, bucket.bytes);
  }
  return bytes;
}

TEST(ZeroMemory, Zero1KeepsItsShareOfTheOptimizersState) {
  run_threads_ok(kWorld, [](comm::Communicator& communicator) {
    const auto bytes = bytes_of_a_step(communicator, Sharding::kOptimizer);
    EXPECT_LE(bytes.state, 1.05 * 2 * static_cast<double>(bytes.parameters) / kWorld);
  });
}

TEST(ZeroMemory, Zero2HoldsItsShardOfTheGradientsAndTwoBuckets) {
  run_threads_ok(kWorld, [](comm::Communicator& communicator) {
    const auto ddp = bytes_of_a_step(communicator, Sharding::kNone);
    const auto bytes = bytes_of_a_step(communicator, Sharding::kGradients);
    EXPECT_LE(bytes.state, 1.05 * 2 * static_cast<double>(bytes.parameters) / kWorld);
    // Before the step, ddp has all gradients and zero2 its shard. In the step both have the activations, and what
    // autograd keeps of the tied embedding's two gradients until it has added them up; zero2 has its buckets besides.
    EXPECT_LE(bytes.in_step, ddp.in_step + 2 * bytes.largest_bucket)
        << "parameters " << bytes.parameters << ", largest bucket " << bytes.largest_bucket << ", ddp's step "
        << ddp.in_step;
    std::cout << "zero2 beyond ddp's step: " << (bytes.in_step - ddp.in_step) / 1e6 << " MB, largest bucket "
              << static_cast<double>(bytes.largest_bucket) / 1e6 << " MB\n";
    EXPECT_LT(2 * bytes.largest_bucket, bytes.parameters) << "else this test says nothing";
  });
}

}  // namespace
}  // namespace lockstep
