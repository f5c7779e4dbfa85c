#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace lockstep::optim {

enum class ScheduleKind {
  kConstant,
  kLinear,     ///< from the base rate to `end_factor` of it, over the steps after the warm-up (torch's LinearLR)
  kCosine,     ///< half a cosine from the base rate to `least_lr` over the steps after the warm-up (CosineAnnealingLR)
  kStep,       ///< times `gamma` after every `step_size` steps (StepLR)
  kMultiStep,  ///< times `gamma` at each of `milestones` (MultiStepLR)
  kOneCycle,   ///< up from base / `divisor` to the base rate, then down to that / `final_divisor` (OneCycleLR, cosine)
};

/// Learning rate as a pure function of the optimizer step, so that a resumed run needs no schedule state. Values are
/// those of the torch.optim.lr_scheduler class that is named above, stepped once an optimizer step.
struct Schedule {
  double base_lr = 0.01;
  ScheduleKind kind = ScheduleKind::kConstant;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  ///< needed by kLinear, kCosine and kOneCycle; by kStep when step_size is 0

  double end_factor = 0;                       ///< kLinear
  double least_lr = 0;                         ///< kCosine
  std::int64_t step_size = 0;                  ///< kStep; 0: a third of the run
  double gamma = 0.1;                          ///< kStep, kMultiStep
  std::vector<std::int64_t> milestones = {};   ///< kMultiStep, in steps, rising
  double rising_part = 0.3;                    ///< kOneCycle: of the run
  double divisor = 25, final_divisor = 10000;  ///< kOneCycle

  /// Rate of step `step` (from 0): min(1, (step + 1) / warmup_steps) times what the kind says.
  double lr(std::int64_t step) const;
};

struct PlateauOptions {
  double factor = 0.1;
  std::int64_t patience = 10;  ///< bad values in a row that are still borne
  double threshold = 1e-4;     ///< relative: a value counts as better below best * (1 - threshold)
  std::int64_t cooldown = 0;   ///< values after a reduction during which bad ones do not count
  double least_factor = 0;     ///< the product of all reductions stays at or above this
};

/// Lowers the rate when a watched value (the evaluation's loss) has stopped falling: torch's ReduceLROnPlateau in mode
/// 'min'. Its factor multiplies a schedule's rate. All ranks must tell it the same values.
class ReduceOnPlateau {
 public:
  struct State {
    double factor = 1;
    double best = std::numeric_limits<double>::infinity();
    std::int64_t bad_values = 0;
    std::int64_t cooldown_left = 0;
  };

  /// Throws ConfigError when an option is out of its range.
  explicit ReduceOnPlateau(const PlateauOptions& options);

  /// Tells it the next value. Returns the factor from now on.
  double observe(double value);
  double factor() const noexcept { return state_.factor; }

  const State& state() const noexcept { return state_; }
  void load(const State& state) { state_ = state; }

 private:
  PlateauOptions options_;
  State state_;
};

}  // namespace lockstep::optim
