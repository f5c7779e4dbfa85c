#include "lockstep/optim/arena.h"

#include <algorithm>
#include <unordered_set>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::optim {

namespace {

constexpr std::int64_t kAlignBytes = 64;
constexpr std::int64_t kTotalAlignBytes = 256;

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

void check_fits(const NamedTensor& entry, const at::Tensor& first) {
  const auto& tensor = entry.tensor;
  if (!tensor.is_floating_point()) {
    throw ConfigError(text("parameter ", entry.name, " has type ", c10::toString(tensor.scalar_type()),
                           ": only floating-point parameters can be trained here"),
                      "keep integer and complex values in buffers, or freeze them with set_requires_grad(false)");
  }
  if (tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device()) {
    throw ConfigError(text("parameter ", entry.name, " is ", c10::toString(tensor.scalar_type()), " on ",
                           tensor.device().str(), " while the first one is ", c10::toString(first.scalar_type()),
                           " on ", first.device().str(), ": all trained parameters need one type and one device"));
  }
}

}  // namespace

ParameterArena::ParameterArena(const std::vector<NamedTensor>& parameters) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& entry : parameters) {
    if (!entry.tensor.requires_grad() || !seen.insert(entry.tensor.unsafeGetTensorImpl()).second) continue;
    check_fits(entry, segments_.empty() ? entry.tensor : segments_.front().parameter);
    segments_.push_back({entry.name, entry.tensor, 0, entry.tensor.numel()});
  }
  if (segments_.empty()) throw ConfigError("the model has no parameter that requires a gradient");
  std::reverse(segments_.begin(), segments_.end());

  const auto options = segments_.front().parameter.options().requires_grad(false);
  const auto element_bytes = static_cast<std::int64_t>(segments_.front().parameter.element_size());
  for (auto& segment : segments_) {
    segment.offset = numel_;
    numel_ += round_up(segment.numel, kAlignBytes / element_bytes);
  }
  numel_ = round_up(numel_, kTotalAlignBytes / element_bytes);

  values_ = at::zeros({numel_}, options);
  storage_ = at::zeros({numel_ + kTailElements}, options);
  gradients_ = storage_.narrow(0, 0, numel_);
  tail_ = storage_.narrow(0, numel_, kTailElements);
  for (auto& segment : segments_) {
    at::NoGradGuard no_grad;
    const auto value = view(values_, segment);
    value.copy_(segment.parameter);
    segment.parameter.set_data(value);
    segment.parameter.mutable_grad() = view(gradients_, segment);
  }
}

at::Tensor ParameterArena::view(const at::Tensor& flat, const Segment& segment) const {
  const auto& parameter = segment.parameter;
  const auto offset = flat.storage_offset() + segment.offset;
  // Channels-last and other dense layouts keep their strides; anything else becomes row-major.
  if (parameter.is_non_overlapping_and_dense()) return flat.as_strided(parameter.sizes(), parameter.strides(), offset);
  return flat.narrow(0, segment.offset, segment.numel).view(parameter.sizes());
}

void ParameterArena::zero_gradients() {
  storage_.zero_();
}

void ParameterArena::check_views() const {
  const auto element_bytes = static_cast<std::int64_t>(values_.element_size());
  const char* values = static_cast<const char*>(values_.const_data_ptr());
  const char* gradients = static_cast<const char*>(gradients_.const_data_ptr());
  for (const auto& segment : segments_) {
    const auto& parameter = segment.parameter;
    const auto& gradient = parameter.grad();
    const bool value_holds = parameter.const_data_ptr() == values + segment.offset * element_bytes;
    const bool gradient_holds =
        gradient.defined() && gradient.const_data_ptr() == gradients + segment.offset * element_bytes;
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
