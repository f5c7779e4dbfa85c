#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/formats/gratings.h"

namespace lockstep::formats {

enum class ImageSetKind { kFashionMnist, kMnist, kCifar10, kCifar100, kSynthetic };

/// Where `fashion-mnist` without a folder is looked for: in the folder that LOCKSTEP_DATASETS names, or where Debian's
/// package dataset-fashion-mnist puts it.
std::filesystem::path fashion_mnist_folder();

/// A data specification taken apart.
struct ImageSetSpec {
  ImageSetKind kind = ImageSetKind::kFashionMnist;
  std::string name;               ///< "fashion-mnist", "mnist", "cifar10", "cifar100", "synthetic"
  std::filesystem::path folder;   ///< empty for synthetic
  ImageShape shape;               ///< synthetic only
  std::int64_t num_train = 4096;  ///< synthetic only
  std::int64_t num_eval = 1024;   ///< synthetic only
};

/// Reads fashion-mnist[:DIR], mnist:DIR, cifar10:DIR, cifar100:DIR or synthetic:CxHxW[:N]. Throws ConfigError that
/// lists these forms.
ImageSetSpec parse_image_set_spec(std::string_view spec);

enum class Split { kTrain, kEval };

/// One split in memory: `pixels` is uint8 [count, channels, height, width] in C order. For CIFAR-100 the labels are the
/// fine ones.
struct ImageSet {
  std::int64_t count = 0;
  ImageShape shape;
  int num_classes = 10;
  std::shared_ptr<const std::uint8_t[]> pixels;
  std::vector<std::uint8_t> labels;
};

/// Reads a split of a set that lies in files: `spec.folder`, or one folder further down as archives unpack it; names
/// with and without .gz, "train-images-idx3-ubyte" and "train-images.idx3-ubyte". Throws DataError with path and place.
/// A synthetic set has no files: ConfigError.
ImageSet read_image_set(const ImageSetSpec& spec, Split split);

}  // namespace lockstep::formats
