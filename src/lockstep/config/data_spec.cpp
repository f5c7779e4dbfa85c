#include "lockstep/config/data_spec.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/flags.h"

namespace lockstep::config {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kForms =
    "expected fashion-mnist[:DIR], mnist:DIR, cifar10:DIR, cifar100:DIR or synthetic:CxHxW[:N]";

const std::vector<std::string>& kinds() {
  static const std::vector<std::string> kKinds{"fashion-mnist", "mnist", "cifar10", "cifar100", "synthetic"};
  return kKinds;
}

std::int64_t positive(std::string_view word, std::int64_t high, const std::string& context) {
  long long value = 0;
  if (parse_number(word, value) && value >= 1 && value <= high) return value;
  throw ConfigError(text(context, ": '", word, "' is not a whole number from 1 to ", high),
                    "the form is synthetic:CxHxW[:N], for example synthetic:3x32x32:4096");
}

void parse_synthetic(DataSpec& spec, std::string_view rest, const std::string& context) {
  const auto parts = split(rest, ':');
  const auto shape = split(parts[0], 'x');
  if (shape.size() != 3 || parts.size() > 2) {
    throw ConfigError(text(context, ": is not of the form synthetic:CxHxW[:N]"), "for example synthetic:3x32x32:4096");
  }
  spec.channels = positive(shape[0], 4096, context);
  spec.height = positive(shape[1], 65536, context);
  spec.width = positive(shape[2], 65536, context);
  if (parts.size() == 2) spec.count = positive(parts[1], std::int64_t{1} << 40, context);
}

}  // namespace

DataSpec parse_data_spec(std::string_view word, std::string_view place) {
  const std::string context = text(place, " ", word);
  const auto colon = word.find(':');
  const bool has_rest = colon != std::string_view::npos;
  const std::string_view rest = has_rest ? word.substr(colon + 1) : std::string_view();
  DataSpec spec;
  spec.kind = word.substr(0, colon);
  if (spec.kind == "imagefolder" || spec.kind == "tokens") {
    throw ConfigError(text(context, ": not in this version (have: ", join(kinds(), ", "), ")"));
  }
  if (std::find(kinds().begin(), kinds().end(), spec.kind) == kinds().end()) {
    throw ConfigError(text(place, ": ", unknown_name("data set", spec.kind, kinds()), " (", kForms, ")"));
  }
  if (spec.kind == "synthetic") {
    parse_synthetic(spec, rest, context);
  } else if (has_rest && rest.empty()) {
    throw ConfigError(text(context, ": no folder after the colon (", kForms, ")"));
  } else if (has_rest) {
    spec.folder = fs::path(rest);
  } else if (spec.kind != "fashion-mnist") {
    throw ConfigError(text(context, ": needs the folder of its files: ", spec.kind, ":DIR"));
  }
  return spec;
}

namespace {

// One file of each set that must be there, under any of its names, here or one folder further down.
std::vector<std::string> landmark_files(const std::string& kind) {
  if (kind == "cifar10") return {"data_batch_1.bin"};
  if (kind == "cifar100") return {"train.bin"};
  return {"train-images-idx3-ubyte", "train-images-idx3-ubyte.gz", "train-images.idx3-ubyte",
          "train-images.idx3-ubyte.gz"};
}

bool holds_any(const fs::path& folder, const std::vector<std::string>& names) {
  std::error_code ignored;
  return std::any_of(names.begin(), names.end(), [&](const auto& name) { return fs::exists(folder / name, ignored); });
}

}  // namespace

void check_data_exists(const DataSpec& spec) {
  if (!spec.folder) return;
  std::error_code error;
  if (!fs::exists(*spec.folder, error)) {
    throw DataError(text("--data ", spec.kind, ": the folder ", spec.folder->string(), " does not exist"),
                    "relative paths start at the current folder");
  }
  if (!fs::is_directory(*spec.folder, error)) {
    throw DataError(text("--data ", spec.kind, ": ", spec.folder->string(), " is not a folder"));
  }
  const auto names = landmark_files(spec.kind);
  if (holds_any(*spec.folder, names)) return;
  fs::directory_iterator entries(*spec.folder, error);
  if (error) throw DataError(text(spec.folder->string(), ": cannot be listed: ", error.message()));
  for (const auto& entry : entries) {
    if (entry.is_directory(error) && holds_any(entry.path(), names)) return;
  }
  throw DataError(text("--data ", spec.kind, ": ", spec.folder->string(), " holds no ", names.front(), " (or ",
                       names.size() > 1 ? text(names[1], ", ") : "", "a folder with it)"));
}

}  // namespace lockstep::config
