#include "lockstep/data/image_dataset.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <future>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {

using formats::ImageSetKind;
using formats::ImageSetSpec;

namespace {

struct Normalisation {
  double mean;
  double deviation;
};

Normalisation normalisation_of(ImageSetKind kind) {
  switch (kind) {
    case ImageSetKind::kFashionMnist:
      return {0.2860, 0.3530};
    case ImageSetKind::kMnist:
      return {0.1307, 0.3081};
    default:
      return {0.5, 0.5};
  }
}

DatasetPtr finish(const ImageSetSpec& spec, at::Tensor pixels, at::Tensor labels, int num_classes) {
  const Normalisation normalisation = normalisation_of(spec.kind);
  const auto channels = static_cast<std::size_t>(pixels.size(1));
  return make_dataset({spec.name, std::move(pixels), std::move(labels), num_classes,
                       std::vector<double>(channels, normalisation.mean),
                       std::vector<double>(channels, normalisation.deviation)});
}

DatasetPtr read_split(const ImageSetSpec& spec, Split split) {
  formats::ImageSet set = formats::read_image_set(spec, split);
  auto labels = at::empty({set.count}, at::kLong);
  std::copy(set.labels.begin(), set.labels.end(), labels.data_ptr<std::int64_t>());
  // The tensor keeps the reader's memory; nobody writes through it.
  auto* bytes = const_cast<std::uint8_t*>(set.pixels.get());
  auto pixels = at::from_blob(
      bytes, {set.count, set.shape.channels, set.shape.height, set.shape.width}, [keep = set.pixels](void*) {},
      at::kByte);
  return finish(spec, std::move(pixels), std::move(labels), set.num_classes);
}

// Images first .. first + count of one endless sequence, so that training and evaluation images differ.
DatasetPtr draw_split(const ImageSetSpec& spec, const formats::Gratings& gratings, std::int64_t first,
                      std::int64_t count) {
  auto pixels = at::empty({count, spec.shape.channels, spec.shape.height, spec.shape.width}, at::kByte);
  auto labels = at::arange(count, at::kLong).remainder(formats::Gratings::kClasses);
  auto* out = pixels.data_ptr<std::uint8_t>();
  at::parallel_for(0, count, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      gratings.draw(first + i, static_cast<int>(i % formats::Gratings::kClasses), out + i * spec.shape.size());
    }
  });
  return finish(spec, std::move(pixels), std::move(labels), formats::Gratings::kClasses);
}

DatasetPtr open_folder(std::string_view kind, const std::filesystem::path& folder, Split split) {
  return read_split(
      formats::parse_image_set_spec(folder.empty() ? std::string(kind) : text(kind, ':', folder.string())), split);
}

}  // namespace

DatasetPtr make_dataset(ImageDataset dataset) {
  const auto refuse = [&](std::string_view what) { throw ConfigError(text("data set ", dataset.name, ": ", what)); };
  const auto& pixels = dataset.pixels;
  const auto& labels = dataset.labels;
  const auto usable = [](const at::Tensor& tensor, at::ScalarType type, std::int64_t dimensions) {
    return tensor.defined() && tensor.device().is_cpu() && tensor.scalar_type() == type && tensor.dim() == dimensions;
  };
  if (!usable(pixels, at::kByte, 4)) refuse("pixels must be a uint8 tensor [N, C, H, W] on the CPU");
  if (!usable(labels, at::kLong, 1)) refuse("labels must be an int64 tensor [N] on the CPU");
  if (pixels.numel() == 0) refuse("has no pixels");
  if (labels.size(0) != pixels.size(0)) refuse(text(pixels.size(0), " images but ", labels.size(0), " labels"));
  const auto channels = static_cast<std::size_t>(pixels.size(1));
  if (dataset.mean.size() != channels || dataset.deviation.size() != channels) {
    refuse(text("needs ", channels, " means and deviations, one a channel"));
  }
  if (std::find(dataset.deviation.begin(), dataset.deviation.end(), 0.0) != dataset.deviation.end()) {
    refuse("has a deviation of 0");
  }
  dataset.pixels = pixels.contiguous();
  dataset.labels = labels.contiguous();
  const auto* label = dataset.labels.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    if (label[i] < 0 || label[i] >= dataset.num_classes) {
      refuse(text("label ", label[i], " of sample ", i, " is out of range, expected 0 to ", dataset.num_classes - 1));
    }
  }
  return std::make_shared<const ImageDataset>(std::move(dataset));
}

DatasetPair open_dataset(std::string_view spec, std::uint64_t seed) {
  const ImageSetSpec parsed = formats::parse_image_set_spec(spec);
  if (parsed.kind == ImageSetKind::kSynthetic) {
    const formats::Gratings gratings(parsed.shape, seed);
    return {draw_split(parsed, gratings, 0, parsed.num_train),
            draw_split(parsed, gratings, parsed.num_train, parsed.num_eval)};
  }
  auto eval = std::async(std::launch::async, [&] { return read_split(parsed, Split::kEval); });
  DatasetPair pair{read_split(parsed, Split::kTrain), nullptr};
  pair.eval = eval.get();
  if (pair.train->pixels.sizes().slice(1) != pair.eval->pixels.sizes().slice(1)) {
    const auto shape = [](const ImageDataset& set) {
      return text(set.channels(), "x", set.height(), "x", set.width());
    };
    throw DataError(text(parsed.folder.string(), ": training images are ", shape(*pair.train), ", evaluation images ",
                         shape(*pair.eval), ": expected one shape"));
  }
  return pair;
}

DatasetPtr fashion_mnist(const std::filesystem::path& folder, Split split) {
  return open_folder("fashion-mnist", folder, split);
}
DatasetPtr mnist(const std::filesystem::path& folder, Split split) {
  return open_folder("mnist", folder, split);
}
DatasetPtr cifar10(const std::filesystem::path& folder, Split split) {
  return open_folder("cifar10", folder, split);
}
DatasetPtr cifar100(const std::filesystem::path& folder, Split split) {
  return open_folder("cifar100", folder, split);
}

}  // namespace lockstep::data
