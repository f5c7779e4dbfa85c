#include "lockstep/kernels/conv_relu_pool.h"

#include <cstring>
#include <memory>
#include <new>

#include "lockstep/base/error.h"
#include "lockstep/kernels/simd_entry.h"

namespace lockstep::kernels {
namespace detail {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

ConvReluPoolScratch conv_relu_pool_scratch(const ConvReluPoolShape& shape, std::int64_t element_bytes) noexcept {
  const std::int64_t lanes = kEntryBytes / element_bytes, filters = shape.padded_filters();
  const std::int64_t padded_taps = round_up(shape.taps() + 1, lanes);
  return {
      .padded_taps = padded_taps,
      .forward_elements = (shape.taps() + 2) * filters,
      .backward_elements = (4 * kTileGroups + 1) * padded_taps + kTileGroups * kTableEntries * lanes +
                           2 * padded_taps * filters + filters,
  };
}

}  // namespace detail

namespace {

constexpr std::align_val_t kAlignment{64};

struct AlignedDelete {
  void operator()(void* p) const noexcept { ::operator delete(p, kAlignment); }
};

template <typename T>
std::unique_ptr<T, AlignedDelete> zeroed_scratch(std::int64_t elements) {
  const auto bytes = static_cast<std::size_t>(elements) * sizeof(T);
  std::unique_ptr<T, AlignedDelete> memory(static_cast<T*>(::operator new(bytes, kAlignment)));
  std::memset(memory.get(), 0, bytes);
  return memory;
}

void check(const ConvReluPoolShape& shape) {
  LOCKSTEP_CHECK(shape.height >= 3 && shape.width >= 3);
  LOCKSTEP_CHECK(shape.images >= 0 && shape.channels >= 1 && shape.filters >= 1);
}

}  // namespace

template <typename T>
void conv_relu_pool_forward(const ConvReluPoolShape& shape, const T* x, const T* w, const T* b, T* pooled,
                            std::uint8_t* active, CpuLevel level) {
  check(shape);
  const auto sizes = detail::conv_relu_pool_scratch(shape, sizeof(T));
  const auto scratch = zeroed_scratch<T>(sizes.forward_elements);
  detail::simd_kernels<T>(level).conv_forward(shape, x, w, b, pooled, active, scratch.get());
}

template <typename T>
void conv_relu_pool_backward(const ConvReluPoolShape& shape, const T* x, const T* w, const std::uint8_t* active,
                             const T* dpooled, T* dw, T* db, T* dx, CpuLevel level) {
  check(shape);
  const auto sizes = detail::conv_relu_pool_scratch(shape, sizeof(T));
  const auto scratch = zeroed_scratch<T>(sizes.backward_elements);
  detail::simd_kernels<T>(level).conv_backward(shape, sizes, x, w, active, dpooled, dw, db, dx, scratch.get());
}

template void conv_relu_pool_forward(const ConvReluPoolShape&, const float*, const float*, const float*, float*,
                                     std::uint8_t*, CpuLevel);
template void conv_relu_pool_forward(const ConvReluPoolShape&, const double*, const double*, const double*, double*,
                                     std::uint8_t*, CpuLevel);
template void conv_relu_pool_backward(const ConvReluPoolShape&, const float*, const float*, const std::uint8_t*,
                                      const float*, float*, float*, float*, CpuLevel);
template void conv_relu_pool_backward(const ConvReluPoolShape&, const double*, const double*, const std::uint8_t*,
                                      const double*, double*, double*, double*, CpuLevel);

}  // namespace lockstep::kernels
