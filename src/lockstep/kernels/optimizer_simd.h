#pragma once

// Bodies of the optimizers for one instruction set; see simd.h for the rules of these files. Every product that PyTorch
// rounds by itself is rounded here too: the files are compiled with -ffp-contract=off and fuse only where PyTorch does.

#include "lockstep/kernels/simd.h"

namespace lockstep::kernels::detail {
namespace {

template <typename T>
struct Optimizer {
  using S = Simd<T>;
  using Vec = typename S::Vec;

  /// body(g, state) for every vector of the arrays. `gradients` is read; the `state` arrays are read and written.
  template <int kArrays, typename Body>
  [[gnu::always_inline]] static inline void for_each_vector(std::int64_t size, const T* gradients,
                                                            T* const (&arrays)[kArrays], Body body) {
    Vec state[kArrays];
    std::int64_t i = 0;
    for (; i + S::kLanes <= size; i += S::kLanes) {
      for (int a = 0; a < kArrays; ++a) state[a] = S::load(arrays[a] + i);
      body(S::load(gradients + i), state);
      for (int a = 0; a < kArrays; ++a) S::store(arrays[a] + i, state[a]);
    }
    if (i == size) return;
    const auto bytes = static_cast<std::size_t>(size - i) * sizeof(T);
    Vec g{};
    __builtin_memcpy(&g, gradients + i, bytes);
    for (int a = 0; a < kArrays; ++a) {
      state[a] = Vec{};
      __builtin_memcpy(&state[a], arrays[a] + i, bytes);
    }
    body(g, state);
    for (int a = 0; a < kArrays; ++a) __builtin_memcpy(arrays[a] + i, &state[a], bytes);
  }

  static Vec constant(double value) { return S::broadcast(static_cast<T>(value)); }

  static void sgd(std::int64_t size, T* values, const T* gradients, T* momentum_buffer, const SgdStep& step) {
    const Vec grad_scale = constant(step.grad_scale), weight_decay = constant(step.weight_decay);
    const Vec minus_lr = constant(-step.lr), momentum = constant(step.momentum);
    const Vec one_minus_dampening = constant(1 - step.dampening);
    const bool decay = step.weight_decay != 0, nesterov = step.nesterov, first = step.first_step;
    if (step.momentum == 0) {
      for_each_vector<1>(
          size, gradients, {values}, [&](Vec g, Vec(&state)[1]) __attribute__((always_inline)) {
            g *= grad_scale;
            if (decay) g = S::multiply_add(state[0], weight_decay, g);
            state[0] = S::multiply_add(g, minus_lr, state[0]);
          });
      return;
    }
    for_each_vector<2>(
        size, gradients, {values, momentum_buffer}, [&](Vec g, Vec(&state)[2]) __attribute__((always_inline)) {
          g *= grad_scale;
          if (decay) g = S::multiply_add(state[0], weight_decay, g);
          Vec& buffer = state[1];
          buffer = first ? g : S::multiply_add(g, one_minus_dampening, buffer * momentum);
          const Vec direction = nesterov ? S::multiply_add(buffer, momentum, g) : buffer;
          state[0] = S::multiply_add(direction, minus_lr, state[0]);
        });
  }

  /// `bias_correction1` = 1 - beta1^step, `sqrt_bias_correction2` = sqrt(1 - beta2^step). With `max_exp_avg_sq` the
  /// largest second moment so far divides (amsgrad).
  static void adam(std::int64_t size, T* values, const T* gradients, T* exp_avg, T* exp_avg_sq, T* max_exp_avg_sq,
                   const AdamStep& step, double bias_correction1, double sqrt_bias_correction2) {
    const Vec grad_scale = constant(step.grad_scale), weight_decay = constant(step.weight_decay);
    const Vec keep = constant(1 - step.lr * step.weight_decay);
    const Vec beta2 = constant(step.beta2), one_minus_beta2 = constant(1 - step.beta2);
    const Vec denominator_scale = constant(sqrt_bias_correction2), eps = constant(step.eps);
    const Vec minus_step_size = constant(-(step.lr / bias_correction1));
    // PyTorch's lerp moves from the nearer end.
    const T weight = static_cast<T>(1 - step.beta1);
    const bool from_average = weight < T(0.5);
    const Vec coefficient = S::broadcast(from_average ? weight : weight - T(1));
    const bool decay = step.weight_decay != 0, decoupled = step.decoupled_weight_decay;
    const auto moments = [&](Vec g, Vec & p, Vec & m, Vec & v) __attribute__((always_inline)) {
      g *= grad_scale;
      if (decay && decoupled) p *= keep;
      if (decay && !decoupled) g = S::multiply_add(p, weight_decay, g);
      m = S::multiply_add(coefficient, g - m, from_average ? m : g);
      v = S::multiply_add(one_minus_beta2 * g, g, v * beta2);
    };
    const auto move = [&](Vec & p, const Vec& m, const Vec& v) __attribute__((always_inline)) {
      const Vec denominator = S::square_root(v) / denominator_scale + eps;
      p += minus_step_size * m / denominator;
    };
    if (max_exp_avg_sq == nullptr) {
      for_each_vector<3>(
          size, gradients, {values, exp_avg, exp_avg_sq}, [&](Vec g, Vec(&state)[3]) __attribute__((always_inline)) {
            moments(g, state[0], state[1], state[2]);
            move(state[0], state[1], state[2]);
          });
      return;
    }
    for_each_vector<4>(
        size, gradients,
        {values, exp_avg, exp_avg_sq, max_exp_avg_sq}, [&](Vec g, Vec(&state)[4]) __attribute__((always_inline)) {
          moments(g, state[0], state[1], state[2]);
          state[3] = state[3] > state[2] ? state[3] : state[2];
          move(state[0], state[1], state[3]);
        });
  }

  /// 16 running sums in double, folded into the total every kBlock elements: the same order at every level.
  static double sum_of_squares(std::int64_t size, const T* values) {
    constexpr std::int64_t kBlock = 4096;
    constexpr int kSums = 16, kDoubles = S::kBytes / 8, kVectors = kSums / kDoubles;
    typedef double Sums __attribute__((vector_size(S::kBytes)));
    typedef T Values __attribute__((vector_size(kDoubles * sizeof(T)), aligned(alignof(T)), may_alias));
    double total = 0;
    for (std::int64_t begin = 0; begin < size; begin += kBlock) {
      const std::int64_t end = size - begin < kBlock ? size : begin + kBlock;
      Sums sums[kVectors] = {};
      std::int64_t i = begin;
      for (; i + kSums <= end; i += kSums) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          const auto& part = *reinterpret_cast<const Values*>(values + i + v * kDoubles);
          const Sums x = __builtin_convertvector(part, Sums);
          sums[v] += x * x;
        }
      }
      double block[kSums];
      __builtin_memcpy(block, sums, sizeof(block));
      for (int lane = 0; i < end; ++i, ++lane) {
        const double x = static_cast<double>(values[i]);
        block[lane] += x * x;
      }
      for (int width = 8; width > 0; width /= 2) {
        for (int lane = 0; lane < width; ++lane) block[lane] += block[lane + width];
      }
      total += block[0];
    }
    return total;
  }
};

}  // namespace
}  // namespace lockstep::kernels::detail
