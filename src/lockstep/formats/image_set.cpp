#include "lockstep/formats/image_set.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/cifar.h"
#include "lockstep/formats/idx.h"

namespace lockstep::formats {

namespace fs = std::filesystem;

namespace {

constexpr const char* kForms =
    "expected fashion-mnist[:DIR], mnist:DIR, cifar10:DIR, cifar100:DIR or synthetic:CxHxW[:N]";
constexpr std::int64_t kMaxSyntheticBytes = std::int64_t{1} << 40;

[[noreturn]] void refuse_spec(std::string_view spec, std::string_view why) {
  throw ConfigError(text("data set \"", spec, "\": ", why, "; ", kForms));
}

std::optional<ImageSetKind> kind_of(std::string_view name) {
  if (name == "fashion-mnist") return ImageSetKind::kFashionMnist;
  if (name == "mnist") return ImageSetKind::kMnist;
  if (name == "cifar10") return ImageSetKind::kCifar10;
  if (name == "cifar100") return ImageSetKind::kCifar100;
  if (name == "synthetic") return ImageSetKind::kSynthetic;
  return std::nullopt;
}

std::int64_t positive_number(std::string_view spec, std::string_view word, std::string_view what) {
  long long value = 0;
  if (!parse_number(word, value) || value < 1 || value > kMaxSyntheticBytes) {
    refuse_spec(spec, text(what, " is \"", word, "\", not a whole number from 1 up"));
  }
  return value;
}

void parse_synthetic(std::string_view spec, std::string_view rest, ImageSetSpec& out) {
  const auto parts = split(rest, ':');
  const auto sides = split(parts[0], 'x');
  if (parts.size() > 2 || sides.size() != 3) refuse_spec(spec, "the shape is not of the form CxHxW or CxHxW:N");
  out.shape = {positive_number(spec, sides[0], "C"), positive_number(spec, sides[1], "H"),
               positive_number(spec, sides[2], "W")};
  if (parts.size() == 2) out.num_train = positive_number(spec, parts[1], "N");
  std::int64_t bytes = out.num_train;
  for (const auto side : {out.shape.channels, out.shape.height, out.shape.width}) {
    if (__builtin_mul_overflow(bytes, side, &bytes) || bytes > kMaxSyntheticBytes)
      refuse_spec(spec, "over 1 TiB of pixels");
  }
}

// `folder`, or the first folder in it that holds one of `names`, the way archives unpack.
fs::path folder_with(const fs::path& folder, const std::vector<std::string>& names) {
  const auto holds_one = [&](const fs::path& candidate) {
    std::error_code error;
    return std::any_of(names.begin(), names.end(),
                       [&](const auto& name) { return fs::exists(candidate / name, error); });
  };
  if (holds_one(folder)) return folder;
  std::vector<fs::path> inside;
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored) && holds_one(it->path())) inside.push_back(it->path());
  }
  return inside.empty() ? folder : *std::min_element(inside.begin(), inside.end());
}

// The file of this stem under any of its four usual names; the official one when none is there.
fs::path idx_path(const fs::path& folder, std::string_view stem, std::string_view kind) {
  std::error_code error;
  for (const char separator : {'-', '.'}) {
    for (const char* ending : {"", ".gz"}) {
      fs::path path = folder / text(stem, separator, kind, ending);
      if (fs::exists(path, error)) return path;
    }
  }
  return folder / text(stem, '-', kind);
}

// All that is missing at once, as long as something that this split needs is.
void require_idx_files(const fs::path& folder, std::string_view stem) {
  std::vector<std::string> missing;
  bool is_needed = false;
  for (const std::string_view group : {"train", "t10k"}) {
    for (const auto& [part, kind] : {std::pair("-images", "idx3-ubyte"), std::pair("-labels", "idx1-ubyte")}) {
      const fs::path path = idx_path(folder, text(group, part), kind);
      std::error_code error;
      if (fs::exists(path, error)) continue;
      missing.push_back(path.filename().string());
      is_needed = is_needed || group == stem;
    }
  }
  if (!is_needed) return;
  throw DataError(
      text(folder.string(), ": the IDX files are not all there, missing: ", join(missing, ", ")),
      "each may also end in .gz, or have a dot before idx; they are looked for here and one folder further down");
}

ImageSet read_mnist(const ImageSetSpec& spec, Split split) {
  const fs::path folder = folder_with(spec.folder, {"train-images-idx3-ubyte", "train-images-idx3-ubyte.gz",
                                                    "train-images.idx3-ubyte", "train-images.idx3-ubyte.gz"});
  const std::string stem = split == Split::kTrain ? "train" : "t10k";
  require_idx_files(folder, stem);
  IdxSet read = read_idx_set(idx_path(folder, stem + "-images", "idx3-ubyte"),
                             idx_path(folder, stem + "-labels", "idx1-ubyte"), 10);
  return {read.images.count,
          {1, read.images.rows, read.images.cols},
          10,
          read.images.pixels,
          std::move(read.labels.labels)};
}

ImageSet read_cifar(const ImageSetSpec& spec, Split split) {
  const bool ten = spec.kind == ImageSetKind::kCifar10;
  const CifarKind kind = ten ? CifarKind::kCifar10 : CifarKind::kCifar100;
  const CifarPaths paths = find_cifar_files(kind, folder_with(spec.folder, {ten ? "data_batch_1.bin" : "train.bin"}));
  CifarImages read = read_cifar_files(kind, split == Split::kTrain ? paths.train : paths.test);
  return {read.count, {3, 32, 32}, ten ? 10 : 100, std::move(read.pixels), std::move(read.labels)};
}

void require_folder(const ImageSetSpec& spec) {
  std::error_code error;
  if (fs::is_directory(spec.folder, error)) return;
  const std::string what =
      text(spec.folder.string(), fs::exists(spec.folder, error) ? ": is not a folder" : ": no such folder",
           ", expected the files of ", spec.name);
  if (spec.kind == ImageSetKind::kFashionMnist) {
    throw DataError(what,
                    "install Debian's package dataset-fashion-mnist (apt-get install dataset-fashion-mnist) or "
                    "give the folder with its four IDX files: fashion-mnist:DIR");
  }
  throw DataError(what, "relative paths start at the current folder");
}

}  // namespace

std::filesystem::path fashion_mnist_folder() {
  const char* datasets = std::getenv("LOCKSTEP_DATASETS");
  return std::filesystem::path(datasets != nullptr && *datasets != '\0' ? datasets : "/usr/share/datasets") /
         "fashion-mnist";
}

ImageSetSpec parse_image_set_spec(std::string_view spec) {
  const auto colon = spec.find(':');
  const bool has_rest = colon != std::string_view::npos;
  const std::string_view rest = has_rest ? spec.substr(colon + 1) : std::string_view();
  ImageSetSpec out;
  out.name = spec.substr(0, colon);
  const auto kind = kind_of(out.name);
  if (!kind) refuse_spec(spec, "unknown kind");
  out.kind = *kind;
  if (out.kind == ImageSetKind::kSynthetic) {
    parse_synthetic(spec, rest, out);
  } else if (has_rest && rest.empty()) {
    refuse_spec(spec, "no folder after the colon");
  } else if (has_rest) {
    out.folder = fs::path(rest);
  } else if (out.kind == ImageSetKind::kFashionMnist) {
    out.folder = fashion_mnist_folder();
  } else {
    refuse_spec(spec, "needs the folder of its files");
  }
  return out;
}

ImageSet read_image_set(const ImageSetSpec& spec, Split split) {
  if (spec.kind == ImageSetKind::kSynthetic) throw ConfigError("a synthetic data set has no files to read");
  require_folder(spec);
  const bool cifar = spec.kind == ImageSetKind::kCifar10 || spec.kind == ImageSetKind::kCifar100;
  return cifar ? read_cifar(spec, split) : read_mnist(spec, split);
}

}  // namespace lockstep::formats
