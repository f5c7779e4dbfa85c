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
    const auto total = at::full({}, sum, at::kDouble);
    plan.sum_over_shards(total);
    sum = total.item<double>();
  }
  return std::sqrt(sum) * gradient_scale;
}

at::Tensor gradient_norm_on_device(const ParameterArena& arena, const UpdatePlan& plan) {
  std::vector<at::Tensor> parts, norms;
  if (plan.is_sharded()) {
    for (const auto& piece : plan.pieces) parts.push_back(plan.gradient(arena, piece));
  } else {
    for (const auto& buffer : arena.buffers()) parts.push_back(buffer.gradients);
  }
  auto type = at::kFloat;
  for (const auto& buffer : arena.buffers()) type = at::promote_types(type, buffer.values.scalar_type());
  // The norm of an fp16 buffer does not fit into fp16.
  for (const auto& part : parts) norms.push_back(at::linalg_vector_norm(part, 2, {}, false, type));
  auto norm = norms.empty()       ? at::zeros({}, at::TensorOptions(type).device(arena.device()))
              : norms.size() == 1 ? norms.front()
                                  : at::linalg_vector_norm(at::stack(norms), 2);
  if (!plan.is_sharded()) return norm;
  norm = norm.square();
  plan.sum_over_shards(norm);
  return norm.sqrt();
}

void clip_gradient_values(const ParameterArena& arena, const UpdatePlan& plan, const at::Tensor& limit) {
  const at::Tensor low = -limit;
  for (const auto& piece : plan.pieces) plan.gradient(arena, piece).clamp_(low, limit);
}

}  // namespace lockstep::optim
