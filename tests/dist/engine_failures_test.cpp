// A rank whose forward or backward throws, and a program that catches it and goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dist/engine_rig.h"
#include "dist/rank_threads.h"
#include "lockstep/base/error.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/engine.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;  // NOLINT(google-build-using-namespace)
using parallel::Sharding;

constexpr int kSteps = 6;

enum class Where { kNowhere, kForward, kFirstBucket, kMiddleBucket, kLastBucket };

struct Failure {
  Where where = Where::kNowhere;
  int step = 3;
  int micro = 0;
  int rank = 1;
};

nn::Sequential make_deep_net() {
  nn::Sequential net(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 3));
  net->to(at::kDouble);
  return with_fixed_values(net);
}

/// The output of layer `until`, which has a hook that throws when backward comes to it.
at::Tensor forward_with(nn::Sequential& net, at::Tensor x, Where where) {
  if (where == Where::kForward) throw std::runtime_error("out of memory in forward");
  // Backward comes to the last layer first.
  const std::size_t at = where == Where::kFirstBucket ? 4 : where == Where::kMiddleBucket ? 2 : 0;
  std::size_t index = 0;
  for (auto& layer : *net) {
    x = layer.forward(x);
    if (where != Where::kNowhere && index++ == at) {
      x.register_hook([](const at::Tensor& gradient) -> at::Tensor {
        if (gradient.defined()) throw std::runtime_error("out of memory in backward");
        return gradient;
      });
    }
  }
  return x;
}

struct Outcome {
  std::vector<at::Tensor> weights;
  int dropped = 0, caught = 0;
  std::int64_t steps = 0;
};

Outcome train_through(comm::Communicator& communicator, Sharding sharding, int accumulate, const Failure& failure,
                      bool leave_out = false, amp::Precision precision = amp::Precision::kFp64) {
  auto net = make_deep_net();
  if (precision != amp::Precision::kFp64) net->to(at::kFloat);
  const auto type = net->parameters()[0].scalar_type();
  optim::Adam optimizer(net->parameters(), {.lr = 0.05});
  const auto strategy = parallel::make_strategy(communicator, sharding, {.bucket_bytes = 64, .first_bucket_bytes = 64});
  train::Engine engine(*net, optimizer, *strategy, {.precision = precision, .scaler = {.initial_scale = 256}});
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    if (leave_out && step == failure.step) continue;
    for (int micro = 0; micro < accumulate; ++micro) {
      const bool fails = step == failure.step && micro == failure.micro && communicator.rank() == failure.rank;
      const auto rows = rows_of(communicator.rank(), step * accumulate + micro).to(type);
      try {
        const auto result = engine.micro_step(3, micro + 1 == accumulate, [&] {
          return forward_with(net, rows, fails ? failure.where : Where::kNowhere).square().mean();
        });
        outcome.dropped += result.dropped ? 1 : 0;
        EXPECT_EQ(result.failed_rank, result.dropped ? failure.rank : -1);
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("out of memory"));
        ++outcome.caught;
      }
    }
  }
  for (const auto& parameter : net->parameters()) outcome.weights.push_back(parameter.detach().clone());
  outcome.steps = engine.num_steps();
  return outcome;
}

class Failing : public ::testing::TestWithParam<std::tuple<Sharding, Where>> {};

TEST_P(Failing, BR096_AllRanksDropThatUpdateTogetherAndGoOn) {
  const auto [sharding, where] = GetParam();
  for (const int world : {2, 4}) {
    for (const int accumulate : {1, 4}) {
      for (const int step : {0, 3}) {
        const Failure failure{.where = where, .step = step, .micro = accumulate / 2, .rank = step == 0 ? 0 : 1};
        run_threads_ok(world, [&](comm::Communicator& communicator) {
          const auto got = train_through(communicator, sharding, accumulate, failure);
          const auto expected = train_through(communicator, sharding, accumulate, failure, /*leave_out=*/true);
          EXPECT_EQ(got.steps, kSteps - 1);
          EXPECT_EQ(got.caught, communicator.rank() == failure.rank ? 1 : 0);
          // The failing rank learns of it by its exception, or at the window's end.
          const bool sees_end = communicator.rank() != failure.rank || failure.micro + 1 < accumulate;
          EXPECT_EQ(got.dropped, sees_end ? 1 : 0);
          for (std::size_t p = 0; p < got.weights.size(); ++p) {
            // The first step gives the layout; a dropped one gives another, which sums in another order.
            EXPECT_TRUE(at::allclose(got.weights[p], expected.weights[p], 1e-12, 1e-12))
                << "world " << world << ", accumulate " << accumulate << ", step " << step << ", parameter " << p;
          }
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Failing,
                         ::testing::Combine(::testing::Values(Sharding::kNone, Sharding::kOptimizer,
                                                              Sharding::kGradients),
                                            ::testing::Values(Where::kForward, Where::kFirstBucket,
                                                              Where::kMiddleBucket, Where::kLastBucket)));

TEST(Failures, BR096_UnderFp16TheFirstStepMayFailToo) {
  run_threads_ok(3, [&](comm::Communicator& communicator) {
    const Failure failure{.where = Where::kForward, .step = 0};
    const auto got = train_through(communicator, Sharding::kNone, 1, failure, false, amp::Precision::kFp16);
    EXPECT_EQ(got.steps, kSteps - 1);
    EXPECT_TRUE(at::isfinite(got.weights[0]).all().item<bool>());
  });
}

// All gradients are there and gone out: the rank that throws makes the update that the others make.
TEST(Failures, BR096_AFailureBehindTheLastGradientLeavesTheRanksEqual) {
  Weights weights;
  run_threads_ok(2, [&](comm::Communicator& communicator) {
    Rig rig(parallel::make_ddp(communicator, {}));
    for (int step = 0; step < 5; ++step) {
      auto rows = rows_of(communicator.rank(), step).requires_grad_(true);
      if (step == 3 && communicator.rank() == 1) {
        rows.register_hook([](const at::Tensor& gradient) -> at::Tensor {
          if (gradient.defined()) throw std::runtime_error("the input's hook");
          return gradient;
        });
      }
      try {
        rig.engine.micro_step(3, true, [&] { return loss_of(rig.net, rows); });
      } catch (const std::runtime_error&) {
        EXPECT_EQ(communicator.rank(), 1);
      }
    }
    EXPECT_GE(rig.engine.num_steps(), 4);
    weights.put(communicator.rank(), *rig.net);
  });
  weights.expect_equal_on_all_ranks();
}

TEST(Failures, ASingleProcessDropsTheWindowToo) {
  run_threads_ok(1, [&](comm::Communicator& communicator) {
    const Failure failure{.where = Where::kMiddleBucket, .step = 2, .micro = 1, .rank = 0};
    const auto got = train_through(communicator, Sharding::kNone, 3, failure);
    const auto expected = train_through(communicator, Sharding::kNone, 3, failure, /*leave_out=*/true);
    EXPECT_EQ(got.steps, kSteps - 1);
    for (std::size_t p = 0; p < got.weights.size(); ++p) EXPECT_TRUE(at::equal(got.weights[p], expected.weights[p]));
  });
}

TEST(Failures, BR067_AnEmptyBatchIsRefusedWithTheWayOut) {
  auto net = make_net();
  optim::SGD optimizer(net->parameters(), {.lr = 0.1});
  const auto single = parallel::make_single();
  train::Engine engine(*net, optimizer, *single, {});
  try {
    engine.micro_step(0, true, [&] { return loss_of(net, rows_of(0, 0, 0)); });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("a micro-batch of 0 samples"), ::testing::HasSubstr("join()")));
  }
  engine.micro_step(3, true, [&] { return loss_of(net, rows_of(0, 0)); });
  EXPECT_EQ(engine.num_steps(), 1);
}

}  // namespace
}  // namespace lockstep
