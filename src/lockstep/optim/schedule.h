#pragma once

#include <cstdint>

namespace lockstep::optim {

enum class ScheduleKind {
  kConstant,
  kCosine,  ///< half a cosine from the base rate to 0 over the steps after the warm-up
  kStep,    ///< a tenth after each third of the run
};

/// Learning rate as a pure function of the optimizer step, so that a resumed run needs no schedule state.
struct Schedule {
  double base_lr = 0.01;
  ScheduleKind kind = ScheduleKind::kConstant;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  ///< needed by kCosine and kStep

  /// Rate of step `step` (from 0): base * min(1, (step + 1) / warmup_steps) * the schedule's factor.
  double lr(std::int64_t step) const;
};

}  // namespace lockstep::optim
