#include "lockstep/kernels/conv_relu_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::kernels {
namespace {

/// Inputs, outputs and the plain reference, all in the element type under test.
template <typename T>
struct Case {
  ConvReluPoolShape shape;
  std::vector<T> x, w, b, dpooled;

  explicit Case(const ConvReluPoolShape& s, unsigned seed = 1) : shape(s) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::vector<T>& values, std::int64_t size) {
      values.resize(static_cast<std::size_t>(size));
      for (T& value : values) value = static_cast<T>(normal(random));
    };
    fill(x, s.images * s.channels * s.height * s.width);
    fill(w, s.filters * s.taps());
    fill(b, s.filters);
    fill(dpooled, s.images * s.filters);
  }

  std::size_t x_index(std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t column) const {
    return static_cast<std::size_t>(((n * shape.channels + c) * shape.height + y) * shape.width + column);
  }
};

template <typename T>
struct Results {
  std::vector<T> pooled, dw, db, dx;
};

/// Seven loops, sums in double.
template <typename T>
Results<double> reference(const Case<T>& in) {
  const ConvReluPoolShape& s = in.shape;
  Results<double> out;
  out.pooled.assign(in.dpooled.size(), 0);
  out.dw.assign(in.w.size(), 0);
  out.db.assign(in.b.size(), 0);
  out.dx.assign(in.x.size(), 0);
  const auto each_tap = [&](std::int64_t n, std::int64_t f, std::int64_t y, std::int64_t x, auto&& body) {
    for (std::int64_t c = 0; c < s.channels; ++c) {
      for (std::int64_t i = 0; i < 3; ++i) {
        for (std::int64_t j = 0; j < 3; ++j) {
          body(static_cast<std::size_t>(f * s.taps() + c * 9 + i * 3 + j), in.x_index(n, c, y + i, x + j));
        }
      }
    }
  };
  for (std::int64_t n = 0; n < s.images; ++n) {
    for (std::int64_t f = 0; f < s.filters; ++f) {
      const auto nf = static_cast<std::size_t>(n * s.filters + f);
      const double g = static_cast<double>(in.dpooled[nf]) / static_cast<double>(s.positions());
      for (std::int64_t y = 0; y < s.height - 2; ++y) {
        for (std::int64_t x = 0; x < s.width - 2; ++x) {
          double value = in.b[static_cast<std::size_t>(f)];
          each_tap(n, f, y, x, [&](std::size_t wi, std::size_t xi) { value += double(in.w[wi]) * double(in.x[xi]); });
          if (value <= 0) continue;
          out.pooled[nf] += value / static_cast<double>(s.positions());
          out.db[static_cast<std::size_t>(f)] += g;
          each_tap(n, f, y, x, [&](std::size_t wi, std::size_t xi) {
            out.dw[wi] += g * in.x[xi];
            out.dx[xi] += g * in.w[wi];
          });
        }
      }
    }
  }
  return out;
}

template <typename T>
Results<T> compute(const Case<T>& in, CpuLevel level, bool with_dx = true) {
  Results<T> out;
  const T garbage = std::numeric_limits<T>::quiet_NaN();  // every output must be overwritten
  out.pooled.assign(in.dpooled.size(), garbage);
  out.dw.assign(in.w.size(), garbage);
  out.db.assign(in.b.size(), garbage);
  if (with_dx) out.dx.assign(in.x.size(), garbage);
  std::vector<std::uint8_t> active(in.shape.active_bytes(), 0xff);
  conv_relu_pool_forward(in.shape, in.x.data(), in.w.data(), in.b.data(), out.pooled.data(), active.data(), level);
  conv_relu_pool_backward(in.shape, in.x.data(), in.w.data(), active.data(), in.dpooled.data(), out.dw.data(),
                          out.db.data(), with_dx ? out.dx.data() : nullptr, level);
  return out;
}

/// `tolerance` is relative to the largest expected value.
template <typename T>
void expect_near(const std::vector<T>& got, const std::vector<double>& want, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double scale = 1;
  for (const double value : want) scale = std::max(scale, std::abs(value));
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<double>(got[i]) - want[i]), tolerance * scale) << what << "[" << i << "]";
  }
}

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> out;
  for (const CpuLevel level : {CpuLevel::kBaseline, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level <= best_cpu_level()) out.push_back(level);
  }
  return out;
}

const ConvReluPoolShape kShapes[] = {
    {1, 1, 3, 3, 1},    {2, 1, 3, 4, 2},  {1, 3, 5, 3, 7},    {3, 2, 4, 9, 16},   {2, 3, 32, 32, 64},
    {1, 4, 11, 6, 17},  {2, 7, 8, 8, 33}, {1, 32, 6, 7, 48},  {2, 1, 28, 28, 64}, {1, 3, 13, 40, 5},
    {1, 16, 5, 5, 130}, {5, 3, 3, 3, 64}, {1, 14, 9, 10, 80}, {0, 3, 32, 32, 8},
};

template <typename T>
class ConvReluPoolTyped : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ConvReluPoolTyped, ElementTypes);

TYPED_TEST(ConvReluPoolTyped, EqualsThePlainLoopsOnEveryInstructionSet) {
  for (const ConvReluPoolShape& shape : kShapes) {
    const Case<TypeParam> in(shape);
    const auto want = reference(in);
    for (const CpuLevel level : levels()) {
      SCOPED_TRACE(text(to_string(level), " N=", shape.images, " C=", shape.channels, " H=", shape.height,
                        " W=", shape.width, " F=", shape.filters));
      const auto got = compute(in, level);
      // fp32 may decide differently for outputs within a rounding error of 0: their patches then count or not.
      const double forward = sizeof(TypeParam) == 4 ? 1e-5 : 1e-13, backward = sizeof(TypeParam) == 4 ? 1e-3 : 1e-13;
      expect_near(got.pooled, want.pooled, forward, "pooled");
      expect_near(got.dw, want.dw, backward, "dw");
      expect_near(got.db, want.db, backward, "db");
      expect_near(got.dx, want.dx, backward, "dx");
      const auto without_dx = compute(in, level, false);
      EXPECT_EQ(without_dx.dw, got.dw);
    }
  }
}

TYPED_TEST(ConvReluPoolTyped, EvaluationWithoutRecordGivesTheSameForward) {
  const Case<TypeParam> in({2, 3, 9, 9, 20});
  const auto want = compute(in, best_cpu_level());
  std::vector<TypeParam> pooled(want.pooled.size());
  conv_relu_pool_forward<TypeParam>(in.shape, in.x.data(), in.w.data(), in.b.data(), pooled.data(), nullptr);
  EXPECT_EQ(pooled, want.pooled);
}

TYPED_TEST(ConvReluPoolTyped, AnOutputOfExactlyZeroIsInactive) {
  Case<TypeParam> in({1, 1, 4, 4, 3});
  std::fill(in.w.begin(), in.w.end(), TypeParam(0));
  std::fill(in.b.begin(), in.b.end(), TypeParam(0));
  for (const CpuLevel level : levels()) {
    const auto got = compute(in, level);
    for (const auto value : got.dw) EXPECT_EQ(value, 0);
    for (const auto value : got.db) EXPECT_EQ(value, 0);
  }
}

TYPED_TEST(ConvReluPoolTyped, NaNReachesTheOutputAndTheGradient) {
  Case<TypeParam> in({1, 2, 8, 8, 20});
  in.x[in.x_index(0, 1, 3, 3)] = std::numeric_limits<TypeParam>::quiet_NaN();
  for (const CpuLevel level : levels()) {
    const auto got = compute(in, level);
    for (const auto value : got.pooled) EXPECT_TRUE(std::isnan(value)) << to_string(level);
    EXPECT_TRUE(std::isnan(got.dw[9 + 4])) << to_string(level);
  }
}

TYPED_TEST(ConvReluPoolTyped, ImagesAreIndependentAndSumInOrder) {
  // The batch equals its images one by one, bit for bit: no sum depends on how the batch was cut for the forward.
  const Case<TypeParam> in({4, 3, 10, 10, 24});
  const auto all = compute(in, best_cpu_level());
  ConvReluPoolShape one = in.shape;
  one.images = 1;
  std::vector<TypeParam> pooled(24);
  for (std::int64_t n = 0; n < 4; ++n) {
    conv_relu_pool_forward<TypeParam>(one, in.x.data() + in.x_index(n, 0, 0, 0), in.w.data(), in.b.data(),
                                      pooled.data(), nullptr);
    EXPECT_TRUE(std::equal(pooled.begin(), pooled.end(), all.pooled.begin() + n * 24)) << n;
  }
}

TEST(ConvReluPool, RefusesImagesSmallerThanTheKernel) {
  const ConvReluPoolShape shape{1, 1, 2, 3, 1};
  float value = 0;
  EXPECT_THROW(conv_relu_pool_forward<float>(shape, &value, &value, &value, &value, nullptr), std::logic_error);
}

}  // namespace
}  // namespace lockstep::kernels
