#pragma once

#include <bit>
#include <cstdint>

namespace lockstep::comm {

// Conversions between fp32 and the two 16-bit formats, without branches so that loops over them vectorise.
// Rounding is to nearest, ties to even; NaN stays NaN. They need the default rounding mode, and do not depend on
// whether the processor flushes denormal numbers.

[[gnu::always_inline]] inline float f32_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

[[gnu::always_inline]] inline std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded);
}

[[gnu::always_inline]] inline float f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  const std::uint32_t exponent_shift = magnitude >= 0x7c00U ? 224U << 23 : 112U << 23;
  const std::uint32_t normal = (magnitude << 13) + exponent_shift;
  // A denormal f16 is its 10 bits times 2^-24, which fp32 holds exactly as a normal number.
  const std::uint32_t denormal =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F);
  return std::bit_cast<float>(sign | (magnitude < 0x400U ? denormal : normal));
}

[[gnu::always_inline]] inline std::uint16_t f16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t normal = ((magnitude + 0xfffU + ((magnitude >> 13) & 1U)) >> 13) - (112U << 10);
  // Adding 0.5, whose last place is 2^-24, makes the adder round to the denormal grid of f16.
  const std::uint32_t denormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  const std::uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  const std::uint32_t finite = magnitude < 0x38800000U ? denormal : normal;
  return static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000U ? special : finite));
}

}  // namespace lockstep::comm
