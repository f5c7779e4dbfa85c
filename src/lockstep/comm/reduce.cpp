#include "lockstep/comm/reduce.h"

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/comm/half.h"

namespace lockstep::comm {
namespace {

struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};

struct Sum {
  template <typename T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};
struct Min {
  template <typename T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return a < b || a != a ? a : b;  // the second test keeps a NaN; the first is false when b is NaN
  }
};
struct Max {
  template <typename T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

[[gnu::always_inline]] inline float widen(F16 value) {
  return f32_from_f16(value.bits);
}
[[gnu::always_inline]] inline float widen(BF16 value) {
  return f32_from_bf16(value.bits);
}
[[gnu::always_inline]] inline void narrow(float value, F16& out) {
  out.bits = f16_from_f32(value);
}
[[gnu::always_inline]] inline void narrow(float value, BF16& out) {
  out.bits = bf16_from_f32(value);
}

// Elements per pass over the sources: the partial result stays in the first-level cache.
constexpr std::size_t kBlock = 1024;

template <typename T, typename Op>
[[gnu::always_inline]] inline void reduce_block(T* __restrict result, const T* const* sources, int num_sources,
                                                std::size_t first, std::size_t count) {
  if constexpr (std::same_as<T, F16> || std::same_as<T, BF16>) {
    float partial[kBlock];
    const T* __restrict source = sources[0] + first;
    for (std::size_t i = 0; i < count; ++i) partial[i] = widen(source[i]);
    for (int k = 1; k < num_sources; ++k) {
      const T* __restrict next = sources[k] + first;
      for (std::size_t i = 0; i < count; ++i) partial[i] = Op::apply(partial[i], widen(next[i]));
    }
    for (std::size_t i = 0; i < count; ++i) narrow(partial[i], result[i]);
  } else {
    const T* __restrict a = sources[0] + first;
    const T* __restrict b = sources[1] + first;
    for (std::size_t i = 0; i < count; ++i) result[i] = Op::apply(a[i], b[i]);
    for (int k = 2; k < num_sources; ++k) {
      const T* __restrict next = sources[k] + first;
      for (std::size_t i = 0; i < count; ++i) result[i] = Op::apply(result[i], next[i]);
    }
  }
}

template <typename T, typename Op>
[[gnu::always_inline]] inline void reduce_all(void* result, const void* const* sources, int num_sources,
                                              std::size_t count) {
  const auto typed_sources = reinterpret_cast<const T* const*>(sources);
  for (std::size_t first = 0; first < count; first += kBlock) {
    reduce_block<T, Op>(static_cast<T*>(result) + first, typed_sources, num_sources, first,
                        std::min(kBlock, count - first));
  }
}

using Kernel = void (*)(void* result, const void* const* sources, int num_sources, std::size_t count);

template <typename T, typename Op>
void reduce_baseline(void* result, const void* const* sources, int num_sources, std::size_t count) {
  reduce_all<T, Op>(result, sources, num_sources, count);
}

#if defined(__x86_64__)
// The same loop compiled for wider vectors. Chosen by hand instead of by target_clones, whose resolver runs before
// ThreadSanitizer is ready.
template <typename T, typename Op>
[[gnu::target("avx2")]] void reduce_avx2(void* result, const void* const* sources, int num_sources, std::size_t count) {
  reduce_all<T, Op>(result, sources, num_sources, count);
}
template <typename T, typename Op>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void reduce_avx512(void* result, const void* const* sources,
                                                                         int num_sources, std::size_t count) {
  reduce_all<T, Op>(result, sources, num_sources, count);
}

template <typename T, typename Op>
Kernel best_kernel() {
  static const Kernel kernel = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      return Kernel{reduce_avx512<T, Op>};
    }
    return __builtin_cpu_supports("avx2") ? Kernel{reduce_avx2<T, Op>} : Kernel{reduce_baseline<T, Op>};
  }();
  return kernel;
}
#else
template <typename T, typename Op>
Kernel best_kernel() {
  return reduce_baseline<T, Op>;
}
#endif

template <typename T>
Kernel kernel_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return best_kernel<T, Sum>();
    case ReduceOp::kMin:
      return best_kernel<T, Min>();
    case ReduceOp::kMax:
      return best_kernel<T, Max>();
  }
  LOCKSTEP_CHECK(!"reduce operation out of range");
}

Kernel kernel_for(Dtype dtype, ReduceOp op) {
  switch (dtype) {
    case Dtype::kF64:
      return kernel_for<double>(op);
    case Dtype::kF32:
      return kernel_for<float>(op);
    case Dtype::kF16:
      return kernel_for<F16>(op);
    case Dtype::kBF16:
      return kernel_for<BF16>(op);
    case Dtype::kI64:
      return kernel_for<std::int64_t>(op);
    case Dtype::kI32:
      return kernel_for<std::int32_t>(op);
    case Dtype::kU8:
      return kernel_for<std::uint8_t>(op);
  }
  LOCKSTEP_CHECK(!"dtype out of range");
}

}  // namespace

void reduce(Dtype dtype, ReduceOp op, std::byte* result, const std::byte* const* sources, int num_sources,
            std::size_t count) {
  LOCKSTEP_CHECK(num_sources >= 1);
  if (count == 0) return;
  if (num_sources == 1) {
    std::memcpy(result, sources[0], count * size_bytes(dtype));
    return;
  }
  kernel_for(dtype, op)(result, reinterpret_cast<const void* const*>(sources), num_sources, count);
}

}  // namespace lockstep::comm
