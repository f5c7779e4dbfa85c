#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::formats {

/// Which of the two binary layouts. A CIFAR-10 record is a label byte and 3,072 pixels; CIFAR-100 puts a coarse label
/// (0 to 19) before the fine one (0 to 99). Pixels are 3 planes (red, green, blue) of 32 x 32.
enum class CifarKind { kCifar10, kCifar100 };

/// `pixels` is uint8 [count, 3, 32, 32] in C order.
struct CifarImages {
  std::int64_t count = 0;
  std::shared_ptr<const std::uint8_t[]> pixels;
  std::vector<std::uint8_t> labels;         ///< CIFAR-100: the fine labels
  std::vector<std::uint8_t> coarse_labels;  ///< CIFAR-100 only
};

/// Reads whole files one after another; each may hold any number of records from 1 up. Throws DataError that names the
/// file, and the record and byte where a label is out of range or the last record ends early.
CifarImages read_cifar_files(CifarKind kind, const std::vector<std::filesystem::path>& paths);

/// The files of a data set's folder: data_batch_1.bin to data_batch_5.bin and test_batch.bin, or train.bin and
/// test.bin. `folder` may also be the parent of the archive's own folder (cifar-10-batches-bin, cifar-100-binary).
struct CifarPaths {
  std::vector<std::filesystem::path> train;
  std::vector<std::filesystem::path> test;
};

/// Throws DataError that lists what is missing.
CifarPaths find_cifar_files(CifarKind kind, const std::filesystem::path& folder);

/// What make_cifar10 wrote.
struct GeneratedCifar {
  struct File {
    std::string name;
    std::int64_t images = 0;
    std::string sha256;
  };
  std::vector<File> files;
  std::int64_t train_images = 0;
  std::int64_t test_images = 0;
};

constexpr std::int64_t kMinGeneratedImages = 5;
constexpr std::int64_t kMaxGeneratedImages = 1'000'000;

/// Writes generated images in CIFAR-10's binary format into `folder`: `images` for training in five files, a fifth as
/// many for testing, batches.meta.txt, and GENERATED.txt, which says that this is not CIFAR-10.
///
/// Each class is a coloured grating with an orientation and a wavelength of its own; phase and brightness are random,
/// and there is noise on top. Equal seeds give equal bytes on every machine. Each file is written atomically.
/// Throws ConfigError when `images` is outside kMinGeneratedImages to kMaxGeneratedImages, or when `folder` holds
/// batches that were not generated: they would be overwritten.
GeneratedCifar make_cifar10(const std::filesystem::path& folder, std::int64_t images, std::uint64_t seed);

}  // namespace lockstep::formats
