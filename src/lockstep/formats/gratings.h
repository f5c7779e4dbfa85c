#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace lockstep::formats {

struct ImageShape {
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;

  std::int64_t size() const noexcept { return channels * height * width; }
};

/// Learnable pictures out of a seed: each of the 10 classes is a coloured grating with an orientation and a wavelength
/// of its own; phase and brightness are random, and there is noise on top.
///
/// Integer arithmetic but for tables rounded to 16 bits: equal seeds give equal bytes on every machine. Image `index`
/// depends on nothing but shape, seed, index and label, so images may be drawn in any order and by several threads.
class Gratings {
 public:
  static constexpr int kClasses = 10;

  Gratings(ImageShape shape, std::uint64_t seed);

  /// Writes shape.size() bytes, [channels, height, width].
  void draw(std::int64_t index, int label, std::uint8_t* out) const;

  /// Labels 0, 1, ... 9, 0, ... in an order drawn from the seed.
  static std::vector<std::uint8_t> shuffled_labels(std::int64_t count, std::uint64_t seed);

 private:
  struct Class {
    std::int32_t step_x = 0;  ///< phase per pixel in 1/65536 of a turn
    std::int32_t step_y = 0;
    std::vector<std::int32_t> tint;  ///< one a channel, in 1/1024
  };

  ImageShape shape_;
  std::uint64_t seed_;
  std::array<std::int32_t, 1024> sine_;  ///< one turn, in 1/1024
  std::array<Class, kClasses> classes_;
};

}  // namespace lockstep::formats
