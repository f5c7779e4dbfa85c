#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/cifar.h"
#include "lockstep/formats/hash.h"

namespace lockstep::formats {

namespace fs = std::filesystem;

namespace {

constexpr int kClasses = 10;
constexpr int kPhases = 16;
constexpr int kSide = 32;
constexpr std::size_t kImageBytes = 3 * kSide * kSide;
constexpr std::size_t kRecordBytes = 1 + kImageBytes;
constexpr int kTrainFiles = 5;
constexpr const char* kClassNames =
    "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";  // the blank line is official too
constexpr const char* kGeneratedNotice =
    "Generated images in CIFAR-10's binary format, not CIFAR-10: the class names mean nothing.\n";

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
  /// Below `bound`, which is at most 2^32; the bias is below 2^-32.
  std::uint64_t below(std::uint64_t bound) { return (next() >> 32) * bound >> 32; }

 private:
  std::uint64_t state_;
};

/// The noise-free images: int16 [class, phase, image]. The trigonometry is rounded to 1/1024 before it is used, so that
/// the last bit of a machine's libm does not reach the pixels.
class Gratings {
 public:
  Gratings() : pixels_(kClasses * kPhases * kImageBytes) {
    std::int16_t* out = pixels_.data();
    for (int label = 0; label < kClasses; ++label) {
      for (int phase = 0; phase < kPhases; ++phase) out = draw(label, phase, out);
    }
  }

  const std::int16_t* image(int label, int phase) const {
    return pixels_.data() + static_cast<std::size_t>(label * kPhases + phase) * kImageBytes;
  }

 private:
  static int scaled(double value) { return static_cast<int>(std::lround(1024 * value)); }

  static std::int16_t* draw(int label, int phase, std::int16_t* out) {
    constexpr double kTurn = 2 * std::numbers::pi;
    const double angle = std::numbers::pi * label / kClasses;
    const int across = scaled(std::cos(angle));
    const int down = scaled(std::sin(angle));
    const int wavelength = 4 + label % 4;
    for (int channel = 0; channel < 3; ++channel) {
      const int tint = scaled(std::cos(kTurn * (label / 10.0 + channel / 3.0)));
      for (int y = 0; y < kSide; ++y) {
        for (int x = 0; x < kSide; ++x) {
          const double cycles = (x * across + y * down) / 1024.0 / wavelength + phase / double{kPhases};
          const int wave = scaled(std::sin(kTurn * cycles));
          const int swing = wave * (30 * 1024 + 10 * tint) / 1024;
          *out++ = static_cast<std::int16_t>(128 + (10 * tint + swing) / 1024);
        }
      }
    }
    return out;
  }

  std::vector<std::int16_t> pixels_;
};

// 16 random bits to -40..40.
int noise(std::uint64_t bits) {
  return static_cast<int>((bits & 0xffff) * 81 >> 16) - 40;
}

void write_record(const Gratings& gratings, int label, SplitMix64& random, std::uint8_t* record) {
  record[0] = static_cast<std::uint8_t>(label);
  const std::int16_t* clean = gratings.image(label, static_cast<int>(random.below(kPhases)));
  const int brightness = static_cast<int>(random.below(61)) - 30;
  for (std::size_t i = 0; i < kImageBytes; i += 2) {
    const std::uint64_t bits = random.next();
    const int left = clean[i] + brightness + noise(bits) + noise(bits >> 16);
    const int right = clean[i + 1] + brightness + noise(bits >> 32) + noise(bits >> 48);
    record[1 + i] = static_cast<std::uint8_t>(std::min(std::max(left, 0), 255));
    record[2 + i] = static_cast<std::uint8_t>(std::min(std::max(right, 0), 255));
  }
}

std::vector<std::uint8_t> shuffled_labels(std::int64_t count, SplitMix64& random) {
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::uint8_t>(i % kClasses);
  for (std::size_t i = labels.size(); i > 1; --i) std::swap(labels[i - 1], labels[random.below(i)]);
  return labels;
}

GeneratedCifar::File write_batch(const fs::path& path, const Gratings& gratings, std::span<const std::uint8_t> labels,
                                 SplitMix64& random) {
  std::string content(labels.size() * kRecordBytes, '\0');
  auto* records = reinterpret_cast<std::uint8_t*>(content.data());
  for (std::size_t i = 0; i < labels.size(); ++i) write_record(gratings, labels[i], random, records + i * kRecordBytes);
  write_file_atomic(path, content);
  return {path.filename().string(), static_cast<std::int64_t>(labels.size()),
          sha256_hex(std::as_bytes(std::span(content)))};
}

void refuse_foreign_batches(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "GENERATED.txt", error)) return;
  for (const char* name : {"data_batch_1.bin", "test_batch.bin"}) {
    if (fs::exists(folder / name, error)) {
      throw ConfigError(text((folder / name).string(), ": is there and was not generated; it would be overwritten"),
                        "choose another folder");
    }
  }
}

}  // namespace

GeneratedCifar make_cifar10(const fs::path& folder, std::int64_t images, std::uint64_t seed) {
  if (images < kMinGeneratedImages || images > kMaxGeneratedImages) {
    throw ConfigError(text("cannot make ", images, " images, expected ", kMinGeneratedImages, " to ",
                           kMaxGeneratedImages, " (five files of at least one)"));
  }
  refuse_foreign_batches(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw ConfigError(text(folder.string(), ": cannot make the folder: ", error.message()));

  // First, so that a run that is cut off leaves no batches without the notice.
  write_file_atomic(folder / "GENERATED.txt", kGeneratedNotice);
  const Gratings gratings;
  GeneratedCifar made{{}, images, images / 5};
  SplitMix64 random(seed);
  const auto train_labels = shuffled_labels(images, random);
  std::size_t begin = 0;
  for (int number = 1; number <= kTrainFiles; ++number) {
    const auto end = static_cast<std::size_t>(images * number / kTrainFiles);
    made.files.push_back(write_batch(folder / text("data_batch_", number, ".bin"), gratings,
                                     std::span(train_labels).subspan(begin, end - begin), random));
    begin = end;
  }
  const auto test_labels = shuffled_labels(made.test_images, random);
  made.files.push_back(write_batch(folder / "test_batch.bin", gratings, test_labels, random));
  write_file_atomic(folder / "batches.meta.txt", kClassNames);
  return made;
}

}  // namespace lockstep::formats
