#pragma once

// Bodies of conv_relu_pool for one instruction set; see simd.h for the rules of these files.

#include "lockstep/kernels/simd.h"

namespace lockstep::kernels::detail {
namespace {

template <typename T>
struct ConvReluPool {
  using S = Simd<T>;
  using Vec = typename S::Vec;
  using Mask = typename S::Mask;
  using Index = std::int64_t;

  /// Groups whose pooled values are summed before they join the total: keeps the rounding error of a large map small.
  static constexpr Index kPartialGroups = 16;

  // ---- forward ----

  /// Walks the patches of a channel plane in row-major order without a division.
  struct PatchWalk {
    Index offset = 0, column = 0, out_width;
    explicit PatchWalk(const ConvReluPoolShape& s) : out_width(s.width - 2) {}
    [[gnu::always_inline]] Index next() {
      const Index now = offset++;
      if (++column == out_width) {
        column = 0;
        offset += 2;
      }
      return now;
    }
  };

  /// The convolution at four positions for kVectors vectors of filters.
  /// `weights` is packed [taps][kVectors * lanes]. Positions at and after `valid` count for nothing.
  template <int kVectors>
  [[gnu::always_inline]] static inline void forward_group(const ConvReluPoolShape& s, const T* const (&patch)[4],
                                                          int valid, const T* weights, const Vec (&bias)[kVectors],
                                                          Vec (&sum)[kVectors], std::uint8_t* active) {
    Vec acc[4][kVectors];
    for (int q = 0; q < 4; ++q) {
      for (int v = 0; v < kVectors; ++v) acc[q][v] = bias[v];
    }
    Index row = 0;
    for (Index c = 0; c < s.channels; ++c) {
      row = c * s.height * s.width;
      for (int i = 0; i < 3; ++i, row += s.width) {
#pragma GCC unroll 3
        for (int j = 0; j < 3; ++j, weights += kVectors * S::kLanes) {
          Vec w[kVectors];
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) w[v] = S::load(weights + v * S::kLanes);
#pragma GCC unroll 4
          for (int q = 0; q < 4; ++q) {
            const Vec x = S::broadcast(patch[q][row + j]);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) acc[q][v] = S::multiply_add(w[v], x, acc[q][v]);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Mask bits{};
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        if (q < valid) S::accumulate_active(acc[q][v], 16 << q, sum[v], bits);
      }
      if (active != nullptr) S::store_bytes(active + v * S::kLanes, bits);
    }
  }

  /// One image, kVectors vectors of filters.
  template <int kVectors>
  static void forward_block(const ConvReluPoolShape& s, const T* x, const T* weights, const T* bias_values, T* sums,
                            std::uint8_t* active) {
    Vec bias[kVectors], total[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      bias[v] = S::load(bias_values + v * S::kLanes);
      total[v] = Vec{};
    }
    const Index positions = s.positions(), stride = s.padded_filters();
    PatchWalk walk(s);
    for (Index group = 0; group < s.groups();) {
      Vec part[kVectors] = {};
      for (Index end = group + kPartialGroups; group < end && group < s.groups(); ++group) {
        const T* patch[4];
        const Index left = positions - 4 * group;
        for (int q = 0; q < 4; ++q) patch[q] = q < left ? x + walk.next() : x;
        std::uint8_t* bits = active == nullptr ? nullptr : active + group * stride;
        if (left >= 4) {
          forward_group<kVectors>(s, patch, 4, weights, bias, part, bits);
        } else {
          forward_group<kVectors>(s, patch, static_cast<int>(left), weights, bias, part, bits);
        }
      }
      for (int v = 0; v < kVectors; ++v) total[v] += part[v];
    }
    const Vec scale = S::broadcast(T(1) / static_cast<T>(positions));
    for (int v = 0; v < kVectors; ++v) S::store(sums + v * S::kLanes, total[v] * scale);
  }

  /// Vectors in the block of filters that starts at `filter`.
  static int block_vectors(const ConvReluPoolShape& s, Index filter) {
    const Index left = (s.padded_filters() - filter) / S::kLanes;
    return left < S::kBlockVectors ? static_cast<int>(left) : S::kBlockVectors;
  }

  /// Scratch: packed weights [blocks][taps][filters of the block], bias [padded filters], sums [padded filters].
  static void forward(const ConvReluPoolShape& s, const T* x, const T* w, const T* b, T* pooled, std::uint8_t* active,
                      T* scratch) {
    const Index padded = s.padded_filters(), taps = s.taps(), plane = s.height * s.width;
    T* bias = scratch + taps * padded;
    T* sums = bias + padded;
    T* packed = scratch;
    for (Index first = 0; first < padded;) {
      const Index width = block_vectors(s, first) * S::kLanes;
      for (Index k = 0; k < taps; ++k) {
        for (Index f = first; f < first + width && f < s.filters; ++f) packed[k * width + f - first] = w[f * taps + k];
      }
      packed += taps * width;
      first += width;
    }
    for (Index f = 0; f < s.filters; ++f) bias[f] = b[f];

    for (Index n = 0; n < s.images; ++n) {
      const T* image = x + n * s.channels * plane;
      std::uint8_t* bits = active == nullptr ? nullptr : active + n * s.groups() * padded;
      for (Index first = 0; first < padded;) {
        const int vectors = block_vectors(s, first);
        const T* weights = scratch + first * taps;
        std::uint8_t* block_bits = bits == nullptr ? nullptr : bits + first;
        switch (vectors) {
          case 4:
            if constexpr (S::kBlockVectors == 4) {
              forward_block<4>(s, image, weights, bias + first, sums + first, block_bits);
            }
            break;
          case 3:
            forward_block<3>(s, image, weights, bias + first, sums + first, block_bits);
            break;
          case 2:
            forward_block<2>(s, image, weights, bias + first, sums + first, block_bits);
            break;
          default:
            forward_block<1>(s, image, weights, bias + first, sums + first, block_bits);
        }
        first += vectors * S::kLanes;
      }
      for (Index f = 0; f < s.filters; ++f) pooled[n * s.filters + f] = sums[f];
    }
  }

  // ---- backward ----

  /// Copies `count` patches from position `first` on into rows of `padded_taps`; the column after the taps is 1.
  static void copy_patches(const ConvReluPoolShape& s, const T* image, PatchWalk& walk, Index first, Index count,
                           Index padded_taps, T* rows) {
    using Quad = typename S::Quad;
    const Index plane = s.height * s.width, last = s.positions() - 1;
    for (Index p = first; p < first + count; ++p, rows += padded_taps) {
      const T* patch = image + walk.next();
      T* out = rows;
      for (Index c = 0; c < s.channels; ++c) {
        for (int i = 0; i < 3; ++i, out += 3) {
          const T* in = patch + c * plane + i * s.width;
          if (p != last) {  // the fourth element lies inside the image and is overwritten by the next copy
            *reinterpret_cast<Quad*>(out) = *reinterpret_cast<const Quad*>(in);
          } else {
            for (int j = 0; j < 3; ++j) out[j] = in[j];
          }
        }
      }
      rows[s.taps()] = T(1);
    }
  }

  /// table[m] = sum of the rows q with bit q of m, for one column chunk of the four rows of a group.
  [[gnu::always_inline]] static inline void build_table(const T* rows, Index padded_taps, T* table) {
#pragma GCC unroll 8
    for (int v = 0; v < S::kEntryVectors; ++v) {
      const T* in = rows + v * S::kLanes;
      Vec entry[kTableEntries];
      entry[0] = Vec{};
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const Vec row = S::load(in + q * padded_taps);
        entry[1 << q] = row;
#pragma GCC unroll 8
        for (int m = 1; m < (1 << q); ++m) entry[(1 << q) + m] = entry[m] + row;
      }
#pragma GCC unroll 16
      for (int m = 0; m < kTableEntries; ++m) S::store(table + m * S::kEntryLanes + v * S::kLanes, entry[m]);
    }
  }

  /// patch_sums[f] += the table entries that the filters' active bits select; kGroups groups.
  [[gnu::always_inline]] static inline void look_up(const std::uint8_t* active, Index stride, Index filters,
                                                    Index groups, const T* tables, T* patch_sums) {
    const char* base = reinterpret_cast<const char*>(tables);
    for (Index f = 0; f < filters; ++f) {
      T* sum = patch_sums + f * S::kEntryLanes;
      Vec acc[S::kEntryVectors];
#pragma GCC unroll 8
      for (int v = 0; v < S::kEntryVectors; ++v) acc[v] = S::load(sum + v * S::kLanes);
#pragma GCC unroll 8
      for (Index g = 0; g < groups; ++g) {
        const T* entry = reinterpret_cast<const T*>(base + g * (kTableEntries * kEntryBytes) +
                                                    static_cast<std::size_t>(active[g * stride + f]) * 8);
#pragma GCC unroll 8
        for (int v = 0; v < S::kEntryVectors; ++v) acc[v] += S::load(entry + v * S::kLanes);
      }
#pragma GCC unroll 8
      for (int v = 0; v < S::kEntryVectors; ++v) S::store(sum + v * S::kLanes, acc[v]);
    }
  }

  /// patch_sums [chunks][padded filters][lanes of an entry]: sums of the patches (and of ones) under the active
  /// outputs.
  static void sum_active_patches(const ConvReluPoolShape& s, Index padded_taps, const T* image,
                                 const std::uint8_t* active, T* rows, T* tables, T* patch_sums) {
    const Index stride = s.padded_filters(), positions = s.positions();
    PatchWalk walk(s);
    __builtin_memset(patch_sums, 0, static_cast<std::size_t>(padded_taps * stride) * sizeof(T));
    for (Index first = 0; first < s.groups(); first += kTileGroups) {
      const Index groups = s.groups() - first < kTileGroups ? s.groups() - first : kTileGroups;
      const Index left = positions - 4 * first;
      copy_patches(s, image, walk, 4 * first, left < 4 * groups ? left : 4 * groups, padded_taps, rows);
      for (Index chunk = 0; chunk < padded_taps / S::kEntryLanes; ++chunk) {
        for (Index g = 0; g < groups; ++g) {
          build_table(rows + 4 * g * padded_taps + chunk * S::kEntryLanes, padded_taps,
                      tables + g * kTableEntries * S::kEntryLanes);
        }
        T* sums = patch_sums + chunk * stride * S::kEntryLanes;
        if (groups == kTileGroups) {
          look_up(active + first * stride, stride, s.filters, kTileGroups, tables, sums);
        } else {
          look_up(active + first * stride, stride, s.filters, groups, tables, sums);
        }
      }
    }
  }

  /// dw += gradient * patch_sums, db += gradient * counts, for one image. `gradient` [filters] is dpooled / positions.
  static void add_weight_gradient(const ConvReluPoolShape& s, const T* gradient, const T* patch_sums, T* dw, T* db) {
    const Index stride = s.padded_filters(), taps = s.taps();
    for (Index f = 0; f < s.filters; ++f) {
      const T g = gradient[f];
      for (Index chunk = 0; chunk * S::kEntryLanes <= taps; ++chunk) {
        const T* sums = patch_sums + (chunk * stride + f) * S::kEntryLanes;
        const Index begin = chunk * S::kEntryLanes;
        const Index count = taps - begin < S::kEntryLanes ? taps - begin : S::kEntryLanes;
        T* out = dw + f * taps + begin;
        for (Index k = 0; k < count; ++k) out[k] += g * sums[k];
        if (count < S::kEntryLanes) db[f] += g * sums[count];
      }
    }
  }

  /// patches[q] = sum over the filters active at position q of gradient * weights, for one chunk of the taps.
  [[gnu::always_inline]] static inline void sum_active_filters(const std::uint8_t* active, Index filters,
                                                               const T* scaled_weights, Index padded_taps, T* patches) {
    constexpr int kVectors = S::kEntryVectors > 2 ? 2 : S::kEntryVectors;
    for (int half = 0; half < S::kEntryVectors; half += kVectors) {
      Vec acc[4][kVectors] = {};
      const T* weights = scaled_weights + half * S::kLanes;
      for (Index f = 0; f < filters; ++f, weights += padded_taps) {
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
          const Mask selected = Mask{} - ((active[f] >> (4 + q)) & 1);
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) acc[q][v] += Vec(selected & Mask(S::load(weights + v * S::kLanes)));
        }
      }
      for (int q = 0; q < 4; ++q) {
        for (int v = 0; v < kVectors; ++v) S::store(patches + q * padded_taps + (half + v) * S::kLanes, acc[q][v]);
      }
    }
  }

  /// dx of one image: for every position, the sum over its active filters of gradient * weights, added to its patch.
  static void input_gradient(const ConvReluPoolShape& s, Index padded_taps, const std::uint8_t* active,
                             const T* gradient, const T* w, T* scaled_weights, T* patches, T* dx) {
    const Index stride = s.padded_filters(), taps = s.taps(), plane = s.height * s.width;
    for (Index f = 0; f < s.filters; ++f) {
      for (Index k = 0; k < taps; ++k) scaled_weights[f * padded_taps + k] = gradient[f] * w[f * taps + k];
    }
    __builtin_memset(dx, 0, static_cast<std::size_t>(s.channels * plane) * sizeof(T));
    PatchWalk walk(s);
    for (Index group = 0; group < s.groups(); ++group) {
      for (Index begin = 0; begin < padded_taps; begin += S::kEntryLanes) {
        sum_active_filters(active + group * stride, s.filters, scaled_weights + begin, padded_taps, patches + begin);
      }
      for (int q = 0; q < 4 && 4 * group + q < s.positions(); ++q) {
        T* out = dx + walk.next();
        const T* in = patches + q * padded_taps;
        for (Index c = 0; c < s.channels; ++c) {
          for (int i = 0; i < 3; ++i, in += 3) {
            for (int j = 0; j < 3; ++j) out[c * plane + i * s.width + j] += in[j];
          }
        }
      }
    }
  }

  /// Scratch: rows [4 * kTileGroups][padded taps] and a vector, tables, patch sums, gradient, scaled weights.
  static void backward(const ConvReluPoolShape& s, const ConvReluPoolScratch& sizes, const T* x, const T* w,
                       const std::uint8_t* active, const T* dpooled, T* dw, T* db, T* dx, T* scratch) {
    const Index padded_taps = sizes.padded_taps, stride = s.padded_filters(), plane = s.height * s.width;
    T* rows = scratch;
    T* tables = rows + (4 * kTileGroups + 1) * padded_taps;
    T* patch_sums = tables + kTileGroups * kTableEntries * S::kEntryLanes;
    T* gradient = patch_sums + padded_taps * stride;
    T* scaled_weights = gradient + stride;
    __builtin_memset(dw, 0, static_cast<std::size_t>(s.filters * s.taps()) * sizeof(T));
    __builtin_memset(db, 0, static_cast<std::size_t>(s.filters) * sizeof(T));
    const T scale = T(1) / static_cast<T>(s.positions());
    for (Index n = 0; n < s.images; ++n) {
      const T* image = x + n * s.channels * plane;
      const std::uint8_t* bits = active + n * s.groups() * stride;
      for (Index f = 0; f < s.filters; ++f) gradient[f] = dpooled[n * s.filters + f] * scale;
      sum_active_patches(s, padded_taps, image, bits, rows, tables, patch_sums);
      add_weight_gradient(s, gradient, patch_sums, dw, db);
      if (dx != nullptr) {
        input_gradient(s, padded_taps, bits, gradient, w, scaled_weights, rows, dx + n * s.channels * plane);
      }
    }
  }
};

}  // namespace
}  // namespace lockstep::kernels::detail
