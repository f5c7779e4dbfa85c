#include "lockstep/optim/update_plan.h"

#include <cmath>

#include <ATen/OpMathType.h>
#include <torch/torch.h>

#include "lockstep/kernels/optimizer.h"

namespace lockstep::optim {

namespace {

double sum_of_squares(const at::Tensor& flat) {
  if (!flat.is_cpu() || (flat.scalar_type() != at::kFloat && flat.scalar_type() != at::kDouble)) {
    const auto type = at::toOpMathType(flat.scalar_type());
    const double norm = at::linalg_vector_norm(flat, 2, {}, false, type).item<double>();
    return norm * norm;
  }
  return AT_DISPATCH_FLOATING_TYPES(flat.scalar_type(), "gradient_norm", [&] {
    return kernels::sum_of_squares<scalar_t>({flat.const_data_ptr<scalar_t>(), static_cast<std::size_t>(flat.numel())});
  });
}

// visit(part of `values`, part of `state`) for each of this rank's pieces of the buffer.
template <typename Visit>
void for_each_piece(const ParameterArena& arena, const UpdatePlan& plan, int buffer, const at::Tensor& values,
                    const at::Tensor& state, Visit visit) {
  for (const auto& piece : plan.pieces) {
    if (arena.segments()[static_cast<std::size_t>(piece.segment)].buffer != buffer) continue;
    visit(values.narrow(0, piece.begin, piece.numel), state.narrow(0, piece.state_begin, piece.numel));
  }
}

}  // namespace

void copy_to_state(const ParameterArena& arena, const UpdatePlan& plan, int buffer, const at::Tensor& values,
                   const at::Tensor& state) {
  for_each_piece(arena, plan, buffer, values, state,
                 [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
}

void copy_from_state(const ParameterArena& arena, const UpdatePlan& plan, int buffer, const at::Tensor& state,
                     const at::Tensor& values) {
  for_each_piece(arena, plan, buffer, values, state,
                 [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
}

at::Tensor UpdatePlan::gradient(const ParameterArena& arena, const UpdatePiece& piece) const {
  const auto buffer = static_cast<std::size_t>(arena.segments()[static_cast<std::size_t>(piece.segment)].buffer);
  if (gradient_shards.empty()) return arena.buffers()[buffer].gradients.narrow(0, piece.begin, piece.numel);
  return gradient_shards[buffer].narrow(0, piece.state_begin, piece.numel);
}

UpdatePlan whole_update_plan(const ParameterArena& arena) {
  UpdatePlan plan;
  for (std::size_t s = 0; s < arena.segments().size(); ++s) {
    const auto& segment = arena.segments()[s];
    plan.pieces.push_back({static_cast<int>(s), segment.offset, segment.numel, segment.offset});
  }
  for (const auto& buffer : arena.buffers()) plan.state_numel.push_back(buffer.numel);
  return plan;
}

double gradient_norm(const ParameterArena& arena, const UpdatePlan& plan, double gradient_scale) {
  double sum = 0;
  if (!plan.is_sharded()) {
    // Padding is zero, so whole buffers may be summed.
    for (const auto& buffer : arena.buffers()) sum += sum_of_squares(buffer.gradients);
  } else {
    for (const auto& piece : plan.pieces) sum += sum_of_squares(plan.gradient(arena, piece));
    plan.sum_over_shards({&sum, 1});
  }
  return std::sqrt(sum) * gradient_scale;
}

void clip_gradient_values(const ParameterArena& arena, const UpdatePlan& plan, double gradient_scale, double limit) {
  const double unscaled = limit / gradient_scale;
  for (const auto& piece : plan.pieces) plan.gradient(arena, piece).clamp_(-unscaled, unscaled);
}

}  // namespace lockstep::optim
