#include "lockstep/comm/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "lockstep/comm/half.h"

namespace lockstep::comm {
namespace {

/// The value of an IEEE half, from its definition.
double f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

TEST(Half, EveryF16BecomesItsValueAndComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const double expected = f16_value(half);
    const float value = f32_from_f16(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(f16_value(f16_from_f32(value)))) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(f16_from_f32(value), half) << bits;
    }
  }
}

/// The nearest f16 to `value`, ties to the even one, by comparing distances; 65520 and more are infinite.
std::uint16_t nearest_f16(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
  std::uint32_t low = 0;
  std::uint32_t high = 0x7bff;
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (f16_value(static_cast<std::uint16_t>(middle)) <= magnitude)
      low = middle;
    else
      high = middle - 1;
  }
  if (low == 0x7bff) return static_cast<std::uint16_t>(sign | low);
  const double below = magnitude - f16_value(static_cast<std::uint16_t>(low));
  const double above = f16_value(static_cast<std::uint16_t>(low + 1)) - magnitude;
  if (above < below || (above == below && low % 2 == 1)) ++low;
  return static_cast<std::uint16_t>(sign | low);
}

TEST(Half, RoundsToTheNearestF16TiesToEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    // Exponents around f16's whole range, denormals and overflow included.
    const std::uint32_t bits = (random() & 0x807fffffU) | ((100U + random() % 45U) << 23);
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(f16_from_f32(value), nearest_f16(value)) << value;
  }
  for (std::uint32_t half = 0; half < 0x7bff; ++half) {  // every tie
    const double tie =
        (f16_value(static_cast<std::uint16_t>(half)) + f16_value(static_cast<std::uint16_t>(half + 1))) / 2;
    ASSERT_EQ(f16_from_f32(static_cast<float>(tie)), half + half % 2) << half;
  }
  EXPECT_EQ(f16_from_f32(65519.99F), 0x7bff);
  EXPECT_EQ(f16_from_f32(65520.0F), 0x7c00);
  EXPECT_EQ(f16_from_f32(-INFINITY), 0xfc00);
}

TEST(Half, RoundsToTheNearestBf16TiesToEven) {
  std::mt19937 random(2);
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const float value = std::bit_cast<float>(bits);
    const std::uint16_t result = bf16_from_f32(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(f32_from_bf16(result)));
      continue;
    }
    const std::uint32_t low = bits >> 16;
    const std::uint32_t rest = bits & 0xffffU;
    ASSERT_EQ(result, rest > 0x8000 || (rest == 0x8000 && low % 2 == 1) ? low + 1 : low) << bits;
  }
  EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(std::bit_cast<float>(0x7f800001U)))));
}

template <typename T>
std::vector<T> reduced(Dtype dtype, ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> result(inputs[0].size());
  reduce(dtype, op, reinterpret_cast<std::byte*>(result.data()), sources.data(), static_cast<int>(sources.size()),
         result.size());
  return result;
}

TEST(Reduce, SixteenBitSumsRoundOnce) {
  // 1 + 2^-8 + 2^-8 + 2^-8: rounding after each addition would lose every small term (bf16 has 8 bits).
  const std::vector<std::uint16_t> one(37, bf16_from_f32(1.0F));
  const std::vector<std::uint16_t> small(37, bf16_from_f32(0x1p-8F));
  const auto sum = reduced<std::uint16_t>(Dtype::kBF16, ReduceOp::kSum, {one, small, small, small});
  for (const std::uint16_t bits : sum) EXPECT_EQ(bits, bf16_from_f32(1.0F + 0x3p-8F));
  const std::vector<std::uint16_t> half_one(37, f16_from_f32(1.0F));
  const std::vector<std::uint16_t> half_small(37, f16_from_f32(0x1p-11F));
  const auto half_sum = reduced<std::uint16_t>(Dtype::kF16, ReduceOp::kSum, {half_one, half_small, half_small});
  for (const std::uint16_t bits : half_sum) EXPECT_EQ(bits, f16_from_f32(1.0F + 0x1p-10F));
}

TEST(Reduce, MinimumAndMaximumKeepNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (const auto& values : {std::vector<float>{nan, 1.0F, 2.0F}, {1.0F, nan, 2.0F}, {1.0F, 2.0F, nan}}) {
      std::vector<std::vector<float>> inputs;
      for (const float value : values) inputs.emplace_back(33, value);
      for (const float value : reduced<float>(Dtype::kF32, op, inputs)) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(Reduce, IntegerSumsWrap) {
  const auto sum =
      reduced<std::int64_t>(Dtype::kI64, ReduceOp::kSum, {{std::numeric_limits<std::int64_t>::max()}, {1}});
  EXPECT_EQ(sum[0], std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(reduced<std::uint8_t>(Dtype::kU8, ReduceOp::kSum, {{200}, {100}})[0], 44);
  EXPECT_EQ(reduced<std::int32_t>(Dtype::kI32, ReduceOp::kMin, {{-5}, {3}, {-7}})[0], -7);
}

TEST(Reduce, OneSourceIsCopied) {
  EXPECT_EQ(reduced<double>(Dtype::kF64, ReduceOp::kSum, {{1.5, -2.5}})[1], -2.5);
}

}  // namespace
}  // namespace lockstep::comm
