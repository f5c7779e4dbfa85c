// Decisions on the device: the same updates, skips and rates as on the host, told later. Here the device is the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include <torch/torch.h>

#include "dist/engine_rig.h"
#include "dist/rank_threads.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/large_batch.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/engine.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using namespace lockstep::testing;  // NOLINT(google-build-using-namespace)
using parallel::Sharding;
using train::Decisions;

struct Case {
  const char* name = "";
  const char* optimizer = "sgd";
  Sharding sharding = Sharding::kNone;
  amp::Precision precision = amp::Precision::kFp16;
  std::optional<double> clip_norm = std::nullopt;
  std::optional<double> clip_value = std::nullopt;
  at::ScalarType type = at::kFloat;
  int accumulate = 1;

  friend void PrintTo(const Case& what, std::ostream* out) { *out << what.name; }
};

std::unique_ptr<optim::Optimizer> optimizer_of(const std::string& name, const nn::Sequential& net) {
  const auto all = net->parameters();
  if (name == "groups") {
    return std::make_unique<optim::AdamW>(std::vector<optim::ParameterGroup<optim::AdamOptions>>{
        {{all[0], all[1]}, {.lr = 0.02}}, {{all[2], all[3]}, {.lr = 0.005, .amsgrad = true}}});
  }
  if (name == "adam") return std::make_unique<optim::Adam>(all, optim::AdamOptions{.lr = 0.02, .weight_decay = 0.01});
  return std::make_unique<optim::SGD>(all, optim::SgdOptions{.lr = 0.05, .momentum = 0.9, .nesterov = true});
}

struct Outcome {
  std::vector<at::Tensor> weights;
  std::int64_t steps = 0;
  double scale = 0, norm = 0;
  std::int64_t skips = 0;
};

Outcome train_with(comm::Communicator& communicator, const Case& what, Decisions decisions) {
  auto net = make_net();
  net->to(what.type);
  const auto optimizer = optimizer_of(what.optimizer, net);
  const auto strategy =
      parallel::make_strategy(communicator, what.sharding, {.bucket_bytes = 64, .first_bucket_bytes = 64});
  train::Engine engine(
      *net, *optimizer, *strategy,
      {.clip_norm = what.clip_norm,
       .clip_value = what.clip_value,
       .schedule = optim::Schedule{.base_lr = 0.05, .kind = optim::ScheduleKind::kCosine, .total_steps = 60},
       .precision = what.precision,
       .scaler = {.initial_scale = 1024, .growth_interval = 5},
       .decisions = decisions});
  Outcome outcome;
  std::int64_t updates = 0;
  for (int step = 0; step < 50; ++step) {
    for (int micro = 0; micro < what.accumulate; ++micro) {
      auto rows = rows_of(communicator.rank(), step * what.accumulate + micro).to(what.type);
      // Single bad batches, two in a row, and one rank alone.
      const bool is_bad = step == 7 || step == 8 || (step % 11 == 4 && communicator.rank() == 0);
      if (is_bad && what.precision == amp::Precision::kFp16) rows.fill_(std::numeric_limits<float>::infinity());
      const auto result = engine.micro_step(3, micro + 1 == what.accumulate, [&] { return loss_of(net, rows); });
      updates += (result.updated ? 1 : 0) - (result.took_back ? 1 : 0);
    }
  }
  const auto before = engine.num_steps();
  engine.settle();
  EXPECT_EQ(updates, before);
  for (const auto& parameter : net->parameters()) outcome.weights.push_back(parameter.detach().clone());
  outcome.steps = engine.num_steps();
  EXPECT_EQ(optimizer->num_steps(), outcome.steps);
  if (engine.scaler()) outcome.scale = engine.scaler()->scale();
  if (engine.scaler()) outcome.skips = engine.scaler()->skips();
  if (what.clip_norm) outcome.norm = engine.last_gradient_norm().value();
  return outcome;
}

class DecisionsTest : public ::testing::TestWithParam<Case> {};

TEST_P(DecisionsTest, OnTheDeviceAreThoseOfTheHost) {
  const auto& what = GetParam();
  run_threads_ok(
      what.sharding == Sharding::kNone && what.accumulate == 1 ? 1 : 3, [&](comm::Communicator& communicator) {
        const auto host = train_with(communicator, what, Decisions::kOnHost);
        const auto device = train_with(communicator, what, Decisions::kOnDevice);
        EXPECT_EQ(device.steps, host.steps);
        EXPECT_EQ(device.scale, host.scale);
        EXPECT_EQ(device.skips, host.skips);
        EXPECT_EQ(host.skips, what.precision == amp::Precision::kFp16 ? 7 : 0);
        // Under fp16 a last bit of a weight can flip a rounding of its copy.
        EXPECT_NEAR(device.norm, host.norm, (what.type == at::kDouble ? 1e-10 : 2e-2) * host.norm);
        const double tolerance = what.type == at::kDouble ? 1e-12 : 2e-5;
        for (std::size_t p = 0; p < host.weights.size(); ++p) {
          EXPECT_TRUE(at::allclose(device.weights[p], host.weights[p], tolerance, tolerance)) << "parameter " << p;
        }
      });
}

INSTANTIATE_TEST_SUITE_P(
    All, DecisionsTest,
    ::testing::Values(Case{.name = "Sgd"}, Case{.name = "Adam", .optimizer = "adam"},
                      Case{.name = "Groups", .optimizer = "groups", .clip_norm = 0.3},
                      Case{.name = "DdpAccumulated", .optimizer = "adam", .clip_norm = 0.3, .accumulate = 2},
                      Case{.name = "Zero1", .optimizer = "adam", .sharding = Sharding::kOptimizer, .clip_norm = 0.3},
                      Case{.name = "Zero2", .sharding = Sharding::kGradients, .clip_value = 0.05},
                      Case{.name = "Fp64Clipped",
                           .optimizer = "adam",
                           .precision = amp::Precision::kFp64,
                           .clip_norm = 0.3,
                           .clip_value = 0.2,
                           .type = at::kDouble},
                      Case{.name = "Fp64Zero2",
                           .sharding = Sharding::kGradients,
                           .precision = amp::Precision::kFp64,
                           .clip_norm = 0.1,
                           .type = at::kDouble}),
    [](const auto& test) { return test.param.name; });

TEST(Decisions, AnOptimizerThatNeedsTheHostIsRefusedOnTheDevice) {
  auto net = make_net();
  const auto single = parallel::make_single();
  optim::Lamb lamb(net->parameters(), {});
  optim::SGD damped(net->parameters(), {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
  for (optim::Optimizer* optimizer : std::initializer_list<optim::Optimizer*>{&lamb, &damped}) {
    try {
      train::Engine(*net, *optimizer, *single, {.decisions = Decisions::kOnDevice});
      FAIL() << optimizer->name();
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(optimizer->name()));
    }
  }
}

TEST(Decisions, ALoadedScaleWantsASettledEngine) {
  auto net = make_net();
  net->to(at::kFloat);
  const auto single = parallel::make_single();
  optim::SGD optimizer(net->parameters(), {.lr = 0.1});
  train::Engine engine(*net, optimizer, *single,
                       {.precision = amp::Precision::kFp16, .decisions = Decisions::kOnDevice});
  const auto step = [&] { engine.micro_step(3, true, [&] { return loss_of(net, rows_of(0, 0).to(at::kFloat)); }); };
  step();
  engine.scaler()->load({.scale = 64});
  EXPECT_THROW(step(), Error);
  engine.settle();
  engine.scaler()->load({.scale = 64});
  step();
  engine.settle();
  EXPECT_EQ(engine.scaler()->scale(), 64);
}

}  // namespace
}  // namespace lockstep
