#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace lockstep::amp {

/// What a training step computes in. Parameters and optimizer state are fp32 in all of them but kFp64.
enum class Precision {
  kFp64,
  kFp32,  ///< no TF32 anywhere
  kTf32,  ///< matrix products and convolutions on CUDA round their inputs to TF32
  kBf16,  ///< autocast to bf16
  kFp16,  ///< autocast to fp16, with dynamic loss scaling
};

/// The type that a precision casts operations to; nothing for those that cast none.
std::optional<at::ScalarType> autocast_type(Precision precision);

/// While one lives, operations of this thread on `device_type` that gain from it run in `type` (fp16 or bf16) and those
/// that need range run in fp32, as under Python's torch.autocast. Weights that are cast are cast once and kept until
/// the outermost scope ends; every scope restores what held before, also when an exception passes.
///
/// Autocast is a property of the thread: a worker thread (a replica of `dp`) opens a scope of its own. Under a
/// no-grad guard inside a scope weights are cast without being kept, so that a later forward still gets gradients.
/// Backward runs outside of the scope, in the types that forward chose. Throws ConfigError for another type.
class AutocastScope {
 public:
  AutocastScope(at::DeviceType device_type, at::ScalarType type, bool enabled = true);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const at::DeviceType device_type_;
  const bool outer_enabled_;
  const at::ScalarType outer_type_;
};

}  // namespace lockstep::amp
