#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/optim/arena.h"

namespace lockstep::optim {

/// A piece of one parameter that this rank updates: elements [begin, begin + numel) of the segment's flat buffer, whose
/// optimizer state lies at [state_begin, state_begin + numel).
struct UpdatePiece {
  int segment = 0;  ///< in layout order
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  std::int64_t state_begin = 0;
};

/// What this rank updates. Without sharding every segment is one piece and the state lies as the values do.
struct UpdatePlan {
  std::vector<UpdatePiece> pieces;
  std::vector<std::int64_t> state_numel;  ///< for each flat buffer
  /// Gradients that lie as the state does, [state_numel], one a buffer; empty: those of the arena, as the values lie.
  std::vector<at::Tensor> gradient_shards;
  /// Adds a contiguous tensor up over the ranks that hold the other shards, in place. Empty when there are none.
  std::function<void(const at::Tensor&)> sum_over_shards;

  bool is_sharded() const noexcept { return static_cast<bool>(sum_over_shards); }
  /// The gradient of a piece, as a view.
  at::Tensor gradient(const ParameterArena& arena, const UpdatePiece& piece) const;
};

/// Copy this rank's pieces of one flat buffer between a tensor that lies as the values do and one that lies as the
/// state.
void copy_to_state(const ParameterArena& arena, const UpdatePlan& plan, int buffer, const at::Tensor& values,
                   const at::Tensor& state);
void copy_from_state(const ParameterArena& arena, const UpdatePlan& plan, int buffer, const at::Tensor& state,
                     const at::Tensor& values);

/// All of everything: what a rank updates that shares the work with nobody.
UpdatePlan whole_update_plan(const ParameterArena& arena);

/// Euclidean norm of the gradients times `gradient_scale`, over all shards. Waits for the device on CUDA.
double gradient_norm(const ParameterArena& arena, const UpdatePlan& plan, double gradient_scale);
/// The same of the gradients as they are, [] on the arena's device (fp32 or fp64), without waiting for it.
at::Tensor gradient_norm_on_device(const ParameterArena& arena, const UpdatePlan& plan);

/// Limits every gradient element to [-limit, limit], in place. `limit`: [] on the arena's device or on the CPU.
void clip_gradient_values(const ParameterArena& arena, const UpdatePlan& plan, const at::Tensor& limit);

}  // namespace lockstep::optim
