#include "lockstep/optim/arena.h"

#include <algorithm>
#include <unordered_set>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::optim {

namespace {

constexpr std::int64_t kAlignBytes = 64;

void check_fits(const NamedTensor& entry, const at::Tensor& first) {
  const auto& tensor = entry.tensor;
  if (!tensor.is_floating_point()) {
    throw ConfigError(text("parameter ", entry.name, " has type ", c10::toString(tensor.scalar_type()),
                           ": only floating-point parameters can be trained here"),
                      tensor.is_complex() ? "keep its real and imaginary parts as two parameters (torch::view_as_real)"
                                          : "keep integers in buffers, or freeze them with set_requires_grad(false)");
  }
  if (tensor.is_sparse()) {
    throw ConfigError(text("parameter ", entry.name, " is sparse: only dense parameters can be trained here"));
  }
  if (tensor.device() != first.device()) {
    throw ConfigError(text("parameter ", entry.name, " is on ", tensor.device().str(), " while ", first.device().str(),
                           " holds the first one: all trained parameters must be on one device"));
  }
}

at::TensorOptions options_of(const at::Tensor& parameter) {
  return parameter.options().requires_grad(false).layout(at::kStrided);
}

}  // namespace

std::int64_t aligned_numel(std::int64_t numel, std::int64_t element_bytes) {
  const std::int64_t line = kAlignBytes / element_bytes;
  return (numel + line - 1) / line * line;
}

ParameterArena::ParameterArena(const std::vector<NamedTensor>& parameters, Gradients gradients)
    : gradients_held_(gradients) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& entry : parameters) {
    if (!entry.tensor.requires_grad() || !seen.insert(entry.tensor.unsafeGetTensorImpl()).second) continue;
    check_fits(entry, segments_.empty() ? entry.tensor : segments_.front().parameter);
    segments_.push_back({.name = entry.name,
                         .parameter = entry.tensor,
                         .index = static_cast<int>(segments_.size()),
                         .numel = entry.tensor.numel()});
  }
  if (segments_.empty()) throw ConfigError("the model has no parameter that requires a gradient");
  std::reverse(segments_.begin(), segments_.end());

  std::vector<at::ScalarType> types;
  std::vector<std::int64_t> numel;
  for (auto& segment : segments_) {
    const auto type = segment.parameter.scalar_type();
    const auto found = std::find(types.begin(), types.end(), type);
    segment.buffer = static_cast<int>(found - types.begin());
    if (found == types.end()) {
      types.push_back(type);
      numel.push_back(0);
      buffers_.push_back({.values = at::empty({0}, options_of(segment.parameter)), .gradients = {}});
    }
    auto& used = numel[static_cast<std::size_t>(segment.buffer)];
    segment.offset = used;
    used += aligned_numel(segment.numel, static_cast<std::int64_t>(segment.parameter.element_size()));
  }
  allocate(numel);
}

// Makes new buffers and moves every parameter's value and gradient into its view of them.
void ParameterArena::allocate(const std::vector<std::int64_t>& numel) {
  const auto tail_numel = kNumSums + static_cast<std::int64_t>(segments_.size());
  gradients_and_tail_ = at::Tensor();
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    auto& buffer = buffers_[b];
    buffer.numel = numel[b];
    buffer.values = at::zeros({numel[b]}, buffer.values.options());
    if (!holds_gradients()) continue;
    const auto type = buffer.values.scalar_type();
    if (b == 0 && device().is_cpu() && (type == at::kFloat || type == at::kDouble)) {
      gradients_and_tail_ = at::zeros({numel[b] + tail_numel}, buffer.values.options());
      buffer.gradients = gradients_and_tail_.narrow(0, 0, numel[b]);
    } else {
      buffer.gradients = at::zeros({numel[b]}, buffer.values.options());
    }
  }
  tail_ =
      tail_is_attached() ? gradients_and_tail_.narrow(0, numel[0], tail_numel) : at::zeros({tail_numel}, at::kDouble);

  at::NoGradGuard no_grad;
  for (auto& segment : segments_) {
    const auto& buffer = buffers_[static_cast<std::size_t>(segment.buffer)];
    const auto value = view(buffer.values, segment);
    value.copy_(segment.parameter);
    segment.parameter.set_data(value);
    auto& gradient = segment.parameter.mutable_grad();
    if (!holds_gradients()) {
      gradient = at::Tensor();
      continue;
    }
    const auto moved = view(buffer.gradients, segment);
    if (gradient.defined()) moved.copy_(gradient);
    gradient = moved;
  }
}

void ParameterArena::apply(const ArenaLayout& layout) {
  LOCKSTEP_CHECK(layout.order.size() == segments_.size() && layout.offset.size() == segments_.size());
  LOCKSTEP_CHECK(layout.numel.size() == buffers_.size());
  std::vector<Segment> moved;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const auto found = std::find_if(segments_.begin(), segments_.end(),
                                    [&](const Segment& segment) { return segment.index == layout.order[i]; });
    LOCKSTEP_CHECK(found != segments_.end());
    moved.push_back(*found);
    moved.back().offset = layout.offset[i];
  }
  segments_ = std::move(moved);
  const at::Tensor old_tail = tail_;
  allocate(layout.numel);
  tail_.copy_(old_tail);
}

at::Tensor ParameterArena::view_at(const at::Tensor& flat, const Segment& segment, std::int64_t offset) const {
  const auto& parameter = segment.parameter;
  // Channels-last and other dense layouts keep their strides; anything else becomes row-major.
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + offset);
  }
  return flat.narrow(0, offset, segment.numel).view(parameter.sizes());
}

void ParameterArena::zero_gradients() {
  // With an attached tail the first buffer and the tail are one memset.
  if (tail_is_attached()) gradients_and_tail_.zero_();
  for (std::size_t b = tail_is_attached() ? 1 : 0; b < buffers_.size(); ++b) {
    if (buffers_[b].gradients.defined()) buffers_[b].gradients.zero_();
  }
  if (!tail_is_attached()) tail_.zero_();
  if (holds_gradients()) return;
  for (auto& segment : segments_) segment.parameter.mutable_grad() = at::Tensor();
}

bool ParameterArena::view_holds(const at::Tensor& tensor, const at::Tensor& flat, const Segment& segment) const {
  const auto bytes = segment.offset * static_cast<std::int64_t>(flat.element_size());
  if (tensor.defined() && segment.numel == 0) return tensor.numel() == 0;
  return tensor.defined() && tensor.const_data_ptr() == static_cast<const char*>(flat.const_data_ptr()) + bytes;
}

void ParameterArena::check_views() const {
  for (const auto& segment : segments_) {
    const auto& parameter = segment.parameter;
    const auto& buffer = buffers_[static_cast<std::size_t>(segment.buffer)];
    const bool value_holds = view_holds(parameter, buffer.values, segment);
    const bool gradient_holds =
        holds_gradients() ? view_holds(parameter.grad(), buffer.gradients, segment) : !parameter.grad().defined();
    if (value_holds && gradient_holds && parameter.requires_grad()) continue;
    throw ConfigError(text("parameter ", segment.name, " was ",
                           !parameter.requires_grad() ? "frozen"
                           : value_holds              ? "given another gradient tensor (zero_grad() does that)"
                                                      : "moved, converted or replaced",
                           " after the engine was made"),
                      "make the engine after such changes; it zeroes the gradients by itself");
  }
}

}  // namespace lockstep::optim
