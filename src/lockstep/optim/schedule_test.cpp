#include "lockstep/optim/schedule.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

TEST(Schedule, WarmsUpThenFollowsItsKind) {
  const Schedule warm{.base_lr = 4, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(warm.lr(0), 1);
  EXPECT_DOUBLE_EQ(warm.lr(3), 4);
  EXPECT_DOUBLE_EQ(warm.lr(1000), 4);
  const Schedule cosine{.base_lr = 2, .kind = ScheduleKind::kCosine, .warmup_steps = 2, .total_steps = 12};
  EXPECT_DOUBLE_EQ(cosine.lr(2), 2);
  EXPECT_NEAR(cosine.lr(7), 1, 1e-12);
  EXPECT_NEAR(cosine.lr(12), 0, 1e-12);
  const Schedule step{.base_lr = 1, .kind = ScheduleKind::kStep, .total_steps = 9};
  EXPECT_DOUBLE_EQ(step.lr(2), 1);
  EXPECT_DOUBLE_EQ(step.lr(3), 0.1);
  EXPECT_NEAR(step.lr(8), 0.01, 1e-15);
}

// Rates that torch.optim.lr_scheduler gave in torch 2.11 for lr 0.4.
void expect_rates(const Schedule& schedule, const std::vector<double>& expected) {
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(schedule.lr(static_cast<std::int64_t>(step)), expected[step], 1e-14) << "step " << step;
  }
}

TEST(Schedule, LinearEqualsPython) {
  expect_rates({.base_lr = 0.4, .kind = ScheduleKind::kLinear, .total_steps = 10, .end_factor = 0.1},
               {0.4, 0.36400000000000005, 0.32800000000000007, 0.2920000000000001, 0.25600000000000006,
                0.22000000000000006, 0.18400000000000005, 0.14800000000000005, 0.11200000000000004, 0.07600000000000004,
                0.04000000000000003, 0.04000000000000003});
}

TEST(Schedule, CosineEqualsPython) {
  expect_rates({.base_lr = 0.4, .kind = ScheduleKind::kCosine, .total_steps = 10, .least_lr = 0.02},
               {0.4, 0.3907007380960792, 0.36371322893124003, 0.3216791979355699, 0.26871322893124, 0.21,
                0.15128677106875998, 0.09832080206443013, 0.05628677106876001, 0.029299261903920827, 0.02});
}

TEST(Schedule, StepAndMultiStepEqualPython) {
  expect_rates({.base_lr = 0.4, .kind = ScheduleKind::kStep, .step_size = 3, .gamma = 0.5},
               {0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05});
  expect_rates({.base_lr = 0.4, .kind = ScheduleKind::kMultiStep, .milestones = {2, 5}},
               {0.4, 0.4, 0.04, 0.04, 0.04, 0.004, 0.004, 0.004});
}

TEST(Schedule, OneCycleEqualsPython) {
  expect_rates({.base_lr = 0.4, .kind = ScheduleKind::kOneCycle, .total_steps = 12},
               {0.016000000000000014, 0.1399158616878332, 0.3517140636488515, 0.39776617418036475, 0.3732051879365647,
                0.3246982615799052, 0.25895159907804133, 0.18505484106679002, 0.11322439928347969, 0.05339101207553224,
                0.01382679497015809, 1.6e-06});
}

TEST(Schedule, ReduceOnPlateauEqualsPython) {
  ReduceOnPlateau plateau({.factor = 0.5, .patience = 1, .threshold = 0.01, .cooldown = 2});
  const std::vector<double> values{1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.499, 0.6, 0.6, 0.6, 0.6};
  const std::vector<double> factors{1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125};
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(plateau.observe(values[i]), factors[i]) << i;
    if (i != 5) continue;
    ReduceOnPlateau resumed({.factor = 0.5, .patience = 1, .threshold = 0.01, .cooldown = 2});
    resumed.load(plateau.state());
    plateau = ReduceOnPlateau({.factor = 0.5, .patience = 1, .threshold = 0.01, .cooldown = 2});
    plateau.load(resumed.state());
  }
  EXPECT_THROW(ReduceOnPlateau({.factor = 1}), ConfigError);
}

}  // namespace
}  // namespace lockstep::optim
