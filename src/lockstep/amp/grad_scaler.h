#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep::amp {

struct GradScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  ///< updates in a row without an infinity before the scale grows
  double least_scale = 1;               ///< the scale never falls below this
  int most_skips = 20;                  ///< skipped updates in a row, the scale being at its least, before an error
};

/// Dynamic loss scaling for fp16 (Micikevicius et al. 2018): the loss is multiplied so that small gradients survive in
/// fp16, gradients are divided again before they are used, and an update whose gradients are not finite is skipped and
/// lowers the scale. Growth and backoff are those of Python's torch.amp.GradScaler, step for step; beyond it the scale
/// has a lower bound.
///
/// The engine uses one by itself. A plain LibTorch loop does
///     scaler.scale(loss).backward();
///     scaler.unscale(optimizer);              // only to look at or clip gradients; else step() does it
///     scaler.step(optimizer);
///     scaler.update();
/// once per update, whatever the number of micro-batches. One thread.
class GradScaler {
 public:
  /// Throws ConfigError when an option is out of its range.
  explicit GradScaler(const GradScalerOptions& options = {});

  const GradScalerOptions& options() const noexcept { return options_; }
  double scale() const noexcept { return scale_; }
  /// loss * scale().
  at::Tensor scale(const at::Tensor& loss) const;

  /// Divides all gradients of the optimizer's parameters by the scale and looks for infinities and NaN. Throws Error
  /// when they were already divided since the last update: micro-batches add up scaled, and are divided once.
  void unscale(torch::optim::Optimizer& optimizer);

  /// Makes the optimizer's step unless an infinity or NaN was found. Returns whether it did.
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends the update: lowers or raises the scale. Throws Error after `most_skips` skipped updates in a row at the least
  /// scale, naming the first of them.
  void update();

  /// The same for gradients that somebody else looked at: `found_inf` is what all ranks agreed on.
  void update(bool found_inf);

  /// Updates skipped in a row, and in all.
  std::int64_t skips_in_a_row() const noexcept { return skips_in_a_row_; }
  std::int64_t skips() const noexcept { return skips_; }
  bool is_at_least() const noexcept { return scale_ <= options_.least_scale; }

  /// What a checkpoint keeps.
  struct State {
    double scale = 0;
    std::int64_t growth_tracker = 0;
    std::int64_t skips = 0;
  };
  State state() const noexcept { return {scale_, growth_tracker_, skips_}; }
  /// Throws CheckpointError for a scale that is not a positive number.
  void load(const State& state);
  /// How often that was called.
  std::int64_t num_loads() const noexcept { return num_loads_; }

 private:
  const GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
  std::int64_t updates_ = 0, num_loads_ = 0;
  std::int64_t skips_in_a_row_ = 0, first_skip_ = 0, skips_ = 0;
  bool is_unscaled_ = false;
  bool found_inf_ = false;
};

/// Names of the tensors that hold an infinity or a NaN, for messages; waits for the device.
std::vector<std::string> names_of_non_finite(const std::vector<std::pair<std::string, at::Tensor>>& tensors);

}  // namespace lockstep::amp
