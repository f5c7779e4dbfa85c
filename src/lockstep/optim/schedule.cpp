#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/options.h"
#include "lockstep/base/text.h"

namespace lockstep::optim {

namespace {

// From `start` at 0 to `end` at 1 along half a cosine.
double half_cosine(double start, double end, double part) {
  return end + (start - end) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

// Part of the steps after the warm-up that lie behind, 0 to 1.
double part_done(const Schedule& schedule, std::int64_t step) {
  const auto length = schedule.total_steps - schedule.warmup_steps;
  if (length <= 0 || step < schedule.warmup_steps) return 0;
  return std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(length));
}

std::int64_t reductions(const Schedule& schedule, std::int64_t step) {
  if (schedule.kind == ScheduleKind::kMultiStep) {
    return std::count_if(schedule.milestones.begin(), schedule.milestones.end(),
                         [&](std::int64_t milestone) { return step >= milestone; });
  }
  if (schedule.step_size > 0) return step / schedule.step_size;
  // Thirds of the run, exact for any length.
  return schedule.total_steps > 0 ? std::min<std::int64_t>(2, 3 * step / schedule.total_steps) : 0;
}

// OneCycleLR's two phases; the first ends at rising_part * total - 1.
double one_cycle(const Schedule& schedule, std::int64_t step) {
  const double total = static_cast<double>(std::max<std::int64_t>(schedule.total_steps, 2));
  const double peak = schedule.rising_part * total - 1;
  const double at = std::min(static_cast<double>(step), total - 1);
  const double start = schedule.base_lr / schedule.divisor;
  if (at <= peak) return half_cosine(start, schedule.base_lr, at / peak);
  return half_cosine(schedule.base_lr, start / schedule.final_divisor, (at - peak) / (total - 1 - peak));
}

}  // namespace

double Schedule::lr(std::int64_t step) const {
  double rate = base_lr;
  switch (kind) {
    case ScheduleKind::kConstant:
      break;
    case ScheduleKind::kLinear:
      rate *= 1 + (end_factor - 1) * part_done(*this, step);
      break;
    case ScheduleKind::kCosine:
      rate = half_cosine(base_lr, least_lr, part_done(*this, step));
      break;
    case ScheduleKind::kStep:
    case ScheduleKind::kMultiStep:
      rate *= std::pow(gamma, static_cast<double>(reductions(*this, step)));
      break;
    case ScheduleKind::kOneCycle:
      rate = one_cycle(*this, step);
      break;
  }
  if (warmup_steps > 0) rate *= std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(warmup_steps));
  return rate;
}

ReduceOnPlateau::ReduceOnPlateau(const PlateauOptions& options) : options_(options) {
  const auto require = [](bool holds, std::string_view what, double value, std::string_view expected) {
    require_option(holds, text("ReduceOnPlateau: ", what), value, expected);
  };
  require(options.factor > 0 && options.factor < 1, "factor", options.factor, "above 0 and below 1");
  require(options.patience >= 0, "patience", static_cast<double>(options.patience), "0 or more");
  require(options.threshold >= 0 && options.threshold < 1, "threshold", options.threshold, "0 to below 1");
  require(options.cooldown >= 0, "cooldown", static_cast<double>(options.cooldown), "0 or more");
}

double ReduceOnPlateau::observe(double value) {
  if (value < state_.best * (1 - options_.threshold)) {
    state_.best = value;
    state_.bad_values = 0;
  } else {
    ++state_.bad_values;
  }
  if (state_.cooldown_left > 0) {
    --state_.cooldown_left;
    state_.bad_values = 0;
  }
  if (state_.bad_values > options_.patience) {
    state_.factor = std::max(options_.least_factor, state_.factor * options_.factor);
    state_.cooldown_left = options_.cooldown;
    state_.bad_values = 0;
  }
  return state_.factor;
}

}  // namespace lockstep::optim
