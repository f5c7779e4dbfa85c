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

/// One parameter's place: elements [offset, offset + numel) of flat buffer `buffer`.
struct Segment {
  std::string name;
  at::Tensor parameter;
  int index = 0;   ///< its place in the order of the model, which no layout changes
  int buffer = 0;  ///< one flat buffer a type
  std::int64_t offset = 0;
  std::int64_t numel = 0;
};

/// The values of all parameters of one type, and their gradients.
struct FlatBuffer {
  at::Tensor values;     ///< [numel]
  at::Tensor gradients;  ///< [numel]; undefined in an arena without gradients
  std::int64_t numel = 0;
};

/// Where parameters are to lie: `order[i]` is the model index of the i-th segment, `offset[i]` its place in its buffer
/// and `numel[b]` the length of buffer b.
struct ArenaLayout {
  std::vector<int> order;
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> numel;
};

/// The trainable parameters and their gradients as views into flat buffers, one of each a type, so that a bucket is a
/// span, the optimizer one pass, clipping one norm and zeroing one memset.
///
/// Segments first lie in the reverse of the order given, which is about the order in which backward finishes them; the
/// reducer may give them another layout once it has seen the real one. Each is padded with zeros to 64 bytes. The
/// gradient buffer 0 ends with a tail that can travel with the last bucket: per-step sums, and one flag a parameter,
/// that would otherwise need a collective of their own. Of a CUDA arena the tail lies apart, in host memory: what is in
/// it the host knows, and reading it must not wait for the device.
///
/// The arena replaces the parameters' storage (`set_data`) and sets their `.grad`; from then on `to(dtype)`, a plain
/// `zero_grad()` (which sets grads to undefined) and assigning new tensors break the views: check_views() finds that.
class ParameterArena {
 public:
  static constexpr std::int64_t kNumSums = 10;  ///< elements of the tail before the flags

  enum class Gradients {
    kHeld,  ///< a view for every parameter
    kNone,  ///< `.grad` stays undefined: the reducer takes each gradient as it comes (ZeRO-2)
  };

  /// `parameters` must be floating point and on one device; a tensor given twice (tied weights) is held once, under its
  /// first name. Throws ConfigError that names the parameter which does not fit.
  explicit ParameterArena(const std::vector<NamedTensor>& parameters, Gradients gradients = Gradients::kHeld);

  ParameterArena(const ParameterArena&) = delete;
  ParameterArena& operator=(const ParameterArena&) = delete;

  /// In layout order.
  const std::vector<Segment>& segments() const noexcept { return segments_; }
  const std::vector<FlatBuffer>& buffers() const noexcept { return buffers_; }
  bool holds_gradients() const noexcept { return gradients_held_ == Gradients::kHeld; }
  at::Device device() const { return buffers_.front().values.device(); }

  /// [kNumSums + number of segments], float or double, on the CPU.
  at::Tensor& tail() noexcept { return tail_; }
  /// Whether the tail lies right behind buffer 0's gradients, so that one span holds both.
  bool tail_is_attached() const noexcept { return gradients_and_tail_.defined(); }
  /// [buffers()[0].numel + tail]; only with an attached tail.
  at::Tensor& gradients_and_tail() noexcept { return gradients_and_tail_; }

  /// Moves values and gradients to another layout. Optimizer state does not move along: it is bound afterwards.
  void apply(const ArenaLayout& layout);

  /// The view of a flat tensor of the buffer's length that belongs to `segment`, in the parameter's shape and strides.
  at::Tensor view(const at::Tensor& flat, const Segment& segment) const {
    return view_at(flat, segment, segment.offset);
  }
  /// The same for a flat tensor in which the segment lies at `offset`.
  at::Tensor view_at(const at::Tensor& flat, const Segment& segment, std::int64_t offset) const;

  /// Gradients and tail; without held gradients `.grad` becomes undefined.
  void zero_gradients();

  /// Throws ConfigError that names the first parameter whose value or gradient is no longer the arena's view, or whose
  /// requires_grad was switched off, and says to make the engine again.
  void check_views() const;

 private:
  void allocate(const std::vector<std::int64_t>& numel);
  bool view_holds(const at::Tensor& tensor, const at::Tensor& flat, const Segment& segment) const;

  const Gradients gradients_held_;
  std::vector<Segment> segments_;
  std::vector<FlatBuffer> buffers_;
  at::Tensor gradients_and_tail_, tail_;
};

/// Elements that `bytes` hold, rounded up to whole 64-byte lines, for elements of `element_bytes`.
std::int64_t aligned_numel(std::int64_t numel, std::int64_t element_bytes);

}  // namespace lockstep::optim
