#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::optim {

double Schedule::lr(std::int64_t step) const {
  double factor = 1;
  if (warmup_steps > 0) {
    factor = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(warmup_steps));
  }
  if (kind == ScheduleKind::kCosine && step >= warmup_steps && total_steps > warmup_steps) {
    const double done = static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
    factor *= 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done)));
  }
  if (kind == ScheduleKind::kStep && total_steps > 0) {
    const std::int64_t thirds = std::min<std::int64_t>(2, 3 * step / total_steps);
    factor *= std::pow(0.1, static_cast<double>(thirds));
  }
  return base_lr * factor;
}

}  // namespace lockstep::optim
