#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/formats/image_set.h"

namespace lockstep::data {

using formats::Split;

/// Images and labels in memory. Never changed after it was made, so any number of threads, loaders and replicas share
/// one through shared_ptr<const ImageDataset>.
///
/// A model's input is (pixel / 255 - mean) / deviation, a channel at a time.
struct ImageDataset {
  std::string name;   ///< "fashion-mnist"
  at::Tensor pixels;  ///< uint8 [N, C, H, W], contiguous, CPU
  at::Tensor labels;  ///< int64 [N], contiguous, CPU, each in [0, num_classes)
  std::int64_t num_classes = 0;
  std::vector<double> mean;       ///< [C], of pixel / 255
  std::vector<double> deviation;  ///< [C]

  std::int64_t size() const { return pixels.size(0); }
  std::int64_t channels() const { return pixels.size(1); }
  std::int64_t height() const { return pixels.size(2); }
  std::int64_t width() const { return pixels.size(3); }
};

using DatasetPtr = std::shared_ptr<const ImageDataset>;

/// Makes a data set of your own tensors. Throws ConfigError when shapes, types, counts or labels do not fit.
DatasetPtr make_dataset(ImageDataset dataset);

struct DatasetPair {
  DatasetPtr train;
  DatasetPtr eval;
};

/// Opens fashion-mnist[:DIR], mnist:DIR, cifar10:DIR, cifar100:DIR or synthetic:CxHxW[:N] (N images, 4096 by default,
/// and 1,024 more for evaluation; label = index mod 10, pixels from `seed`). Both splits are read at once, on two
/// threads. Throws ConfigError for another form and DataError for missing or damaged files.
DatasetPair open_dataset(std::string_view spec, std::uint64_t seed = 0);

/// Short cuts for one split. An empty `folder` is the place of Debian's package dataset-fashion-mnist.
DatasetPtr fashion_mnist(const std::filesystem::path& folder = {}, Split split = Split::kTrain);
DatasetPtr mnist(const std::filesystem::path& folder, Split split = Split::kTrain);
DatasetPtr cifar10(const std::filesystem::path& folder, Split split = Split::kTrain);
DatasetPtr cifar100(const std::filesystem::path& folder, Split split = Split::kTrain);

}  // namespace lockstep::data
