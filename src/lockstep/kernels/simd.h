#pragma once

// Vectors as wide as the registers of the instruction set that the including file is compiled for. Included by
// simd_<level>.cpp alone: everything is in an unnamed namespace and uses compiler built-ins, so that no inline function
// of the standard library is emitted for a CPU that the rest of the program may not run on.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#include "lockstep/kernels/simd_entry.h"

namespace lockstep::kernels::detail {
namespace {

template <typename T>
struct Simd {
#if defined(__AVX512F__)
  static constexpr int kBytes = 64;
  static constexpr int kBlockVectors = 4;  ///< 4 positions x 4 vectors of filters: 16 accumulators of 32 registers
#elif defined(__AVX2__)
  static constexpr int kBytes = 32;
  static constexpr int kBlockVectors = 3;  ///< 12 accumulators of 16 registers
#else
  static constexpr int kBytes = 16;
  static constexpr int kBlockVectors = 3;
#endif
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(T));
  static constexpr int kEntryVectors = static_cast<int>(kEntryBytes) / kBytes;
  static constexpr int kEntryLanes = static_cast<int>(kEntryBytes) / static_cast<int>(sizeof(T));

  typedef T Vec __attribute__((vector_size(kBytes)));
  typedef T Unaligned __attribute__((vector_size(kBytes), aligned(alignof(T)), may_alias));
  typedef T Quad __attribute__((vector_size(4 * sizeof(T)), aligned(alignof(T)), may_alias));
  typedef std::uint8_t Bytes __attribute__((vector_size(kLanes), aligned(1), may_alias));

  [[gnu::always_inline]] static inline Vec load(const T* p) {
    return *reinterpret_cast<const Unaligned*>(p);
  }
  [[gnu::always_inline]] static inline void store(T* p, Vec v) {
    *reinterpret_cast<Unaligned*>(p) = v;
  }
  [[gnu::always_inline]] static inline Vec broadcast(T value) {
    return value - Vec{};
  }

  /// a * b + c, with one rounding where the level has fused multiply-add.
  [[gnu::always_inline]] static inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
      return Vec(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
    } else {
      return Vec(_mm512_fmadd_pd(__m512d(a), __m512d(b), __m512d(c)));
    }
#elif defined(__FMA__)
    if constexpr (sizeof(T) == 4) {
      return Vec(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
    } else {
      return Vec(_mm256_fmadd_pd(__m256d(a), __m256d(b), __m256d(c)));
    }
#else
    return a * b + c;
#endif
  }

  [[gnu::always_inline]] static inline Vec square_root(Vec a) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
      return Vec(_mm512_maskz_sqrt_ps(0xffff, __m512(a)));
    } else {
      return Vec(_mm512_maskz_sqrt_pd(0xff, __m512d(a)));
    }
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
      return Vec(_mm256_sqrt_ps(__m256(a)));
    } else {
      return Vec(_mm256_sqrt_pd(__m256d(a)));
    }
#elif defined(__x86_64__)
    if constexpr (sizeof(T) == 4) {
      return Vec(_mm_sqrt_ps(__m128(a)));
    } else {
      return Vec(_mm_sqrt_pd(__m128d(a)));
    }
#else
    for (int lane = 0; lane < kLanes; ++lane)
      a[lane] = sizeof(T) == 4 ? __builtin_sqrtf(a[lane]) : __builtin_sqrt(a[lane]);
    return a;
#endif
  }

  using Mask = decltype(Vec{} < Vec{});

  /// For every lane of `value` that passes the ReLU (above 0, or NaN): sum += value, bits |= bit.
  [[gnu::always_inline]] static inline void accumulate_active(Vec value, int bit, Vec& sum, Mask& bits) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
      const __mmask16 active = _mm512_cmp_ps_mask(__m512(value), _mm512_setzero_ps(), _CMP_NLE_UQ);
      sum = Vec(_mm512_mask_add_ps(__m512(sum), active, __m512(sum), __m512(value)));
      bits = Mask(_mm512_mask_or_epi32(__m512i(bits), active, __m512i(bits), _mm512_set1_epi32(bit)));
    } else {
      const __mmask8 active = _mm512_cmp_pd_mask(__m512d(value), _mm512_setzero_pd(), _CMP_NLE_UQ);
      sum = Vec(_mm512_mask_add_pd(__m512d(sum), active, __m512d(sum), __m512d(value)));
      bits = Mask(_mm512_mask_or_epi64(__m512i(bits), active, __m512i(bits), _mm512_set1_epi64(bit)));
    }
#else
    const Mask active = ~(value <= Vec{});
    sum += Vec(active & Mask(value));
    bits |= active & bit;
#endif
  }

  /// Stores the low byte of every lane.
  [[gnu::always_inline]] static inline void store_bytes(std::uint8_t* p, Mask bits) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xffff, __m512i(bits)));
    } else {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi64_epi8(0xff, __m512i(bits)));
    }
#else
    *reinterpret_cast<Bytes*>(p) = __builtin_convertvector(bits, Bytes);
#endif
  }
};

}  // namespace
}  // namespace lockstep::kernels::detail
