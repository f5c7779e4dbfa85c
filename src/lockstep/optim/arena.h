#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::optim {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// One parameter's place in the arena, in elements.
struct Segment {
  std::string name;
  at::Tensor parameter;
  std::int64_t offset = 0;
  std::int64_t numel = 0;
};

/// The trainable parameters and their gradients as views into two flat buffers, so that a bucket is a span, the
/// optimizer one pass, clipping one norm and zeroing one memset.
///
/// Segments lie in the reverse of the order given, which is about the order in which backward finishes them, each
/// padded to 64 bytes with zeros. The gradient buffer ends with `kTailElements` extra elements that travel with the
/// last bucket: per-step sums that would otherwise need a collective of their own.
///
/// The arena replaces the parameters' storage (`set_data`) and sets their `.grad`; from then on `to(dtype)`, a plain
/// `zero_grad()` (which sets grads to undefined) and assigning new tensors break the views: check_views() finds that.
class ParameterArena {
 public:
  static constexpr std::int64_t kTailElements = 4;

  /// `parameters` must be floating point, of one dtype and on one device; a tensor given twice (tied weights) is held
  /// once, under its first name. Throws ConfigError that names the parameter which does not fit.
  explicit ParameterArena(const std::vector<NamedTensor>& parameters);

  ParameterArena(const ParameterArena&) = delete;
  ParameterArena& operator=(const ParameterArena&) = delete;

  const std::vector<Segment>& segments() const noexcept { return segments_; }
  /// Elements of the padded buffers, without the tail.
  std::int64_t numel() const noexcept { return numel_; }

  at::Tensor& values() noexcept { return values_; }               ///< [numel]
  at::Tensor& gradients() noexcept { return gradients_; }         ///< [numel]
  at::Tensor& tail() noexcept { return tail_; }                   ///< [kTailElements], right behind the gradients
  at::Tensor& gradients_and_tail() noexcept { return storage_; }  ///< [numel + kTailElements]

  /// The view of a flat buffer of numel() elements that belongs to `segment`, in the parameter's shape and strides.
  at::Tensor view(const at::Tensor& flat, const Segment& segment) const;

  void zero_gradients();

  /// Throws ConfigError that names the first parameter whose value or gradient is no longer the arena's view, or whose
  /// requires_grad was switched off, and says to wrap the model again.
  void check_views() const;

 private:
  std::vector<Segment> segments_;
  std::int64_t numel_ = 0;
  at::Tensor values_, storage_, gradients_, tail_;
};

}  // namespace lockstep::optim
