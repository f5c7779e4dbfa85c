#include "lockstep/formats/gratings.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::formats {

namespace {

constexpr double kTurn = 2 * std::numbers::pi;
constexpr int kPhases = 16;

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  /// Below `bound`, which is at most 2^32; the bias is below 2^-32 of a value.
  std::uint64_t below(std::uint64_t bound) { return (next() >> 32) * bound >> 32; }

 private:
  std::uint64_t state_;
};

// 16 random bits to -40..40.
std::int32_t noise(std::uint64_t bits) {
  return static_cast<std::int32_t>((bits & 0xffff) * 81 >> 16) - 40;
}

std::int32_t rounded(double value) {
  return static_cast<std::int32_t>(std::lround(value));
}

}  // namespace

Gratings::Gratings(ImageShape shape, std::uint64_t seed) : shape_(shape), seed_(seed) {
  for (int i = 0; i < 1024; ++i) sine_[static_cast<std::size_t>(i)] = rounded(1024 * std::sin(kTurn * i / 1024));
  for (int label = 0; label < kClasses; ++label) {
    Class& look = classes_[static_cast<std::size_t>(label)];
    const double angle = std::numbers::pi * label / kClasses;
    const int wavelength = 4 + label % 4;
    look.step_x = rounded(65536 * std::cos(angle) / wavelength);
    look.step_y = rounded(65536 * std::sin(angle) / wavelength);
    for (std::int64_t channel = 0; channel < shape.channels; ++channel) {
      const double turns = label / 10.0 + static_cast<double>(channel % 3) / 3;
      look.tint.push_back(rounded(1024 * std::cos(kTurn * turns)));
    }
  }
}

void Gratings::draw(std::int64_t index, int label, std::uint8_t* out) const {
  const Class& look = classes_[static_cast<std::size_t>(label)];
  // Two rounds of the generator separate the streams of neighbouring seeds and indices.
  SplitMix64 random(SplitMix64(seed_).next() + SplitMix64(static_cast<std::uint64_t>(index)).next());
  const auto phase = static_cast<std::uint32_t>(random.below(kPhases)) * (65536 / kPhases);
  const std::int32_t brightness = static_cast<std::int32_t>(random.below(61)) - 30;
  std::uint64_t bits = 0;
  int bits_left = 0;
  for (const std::int32_t tint : look.tint) {
    const std::int32_t base = 128 + brightness + 10 * tint / 1024;
    const std::int32_t swing = 30 * 1024 + 10 * tint;
    for (std::int64_t y = 0; y < shape_.height; ++y) {
      std::uint32_t turn = phase + static_cast<std::uint32_t>(y) * static_cast<std::uint32_t>(look.step_y);
      for (std::int64_t x = 0; x < shape_.width; ++x, turn += static_cast<std::uint32_t>(look.step_x)) {
        if (bits_left == 0) {
          bits = random.next();
          bits_left = 2;
        }
        const std::int32_t wave = sine_[turn >> 6 & 1023] * swing / (1024 * 1024);
        const std::int32_t value = base + wave + noise(bits) + noise(bits >> 16);
        *out++ = static_cast<std::uint8_t>(std::clamp(value, 0, 255));
        bits >>= 32;
        --bits_left;
      }
    }
  }
}

std::vector<std::uint8_t> Gratings::shuffled_labels(std::int64_t count, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::uint8_t>(i % kClasses);
  for (std::size_t i = labels.size(); i > 1; --i) std::swap(labels[i - 1], labels[random.below(i)]);
  return labels;
}

}  // namespace lockstep::formats
