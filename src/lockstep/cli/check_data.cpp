#include "lockstep/cli/check_data.h"

#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/image_set.h"

namespace lockstep::cli {

namespace fs = std::filesystem;

namespace {

formats::ImageSetSpec parse(const std::string& word, const std::string& place) {
  try {
    return formats::parse_image_set_spec(word);
  } catch (const ConfigError& error) {
    throw ConfigError(text(place, ": ", error.what()));
  }
}

}  // namespace

void check_data(const config::FlagValues& values) {
  const std::string word = values.text("data");
  const formats::ImageSetSpec spec = parse(word, values.place("data"));
  if (spec.kind == formats::ImageSetKind::kSynthetic) return;
  const std::string start = text(values.place("data"), " ", word, ": ");
  std::error_code none;
  if (fs::is_directory(spec.folder, none)) return;
  if (fs::exists(spec.folder, none)) throw DataError(text(start, spec.folder.string(), " is not a folder"));
  const bool own_place = spec.folder == formats::fashion_mnist_folder();
  throw DataError(text(start, "the folder ", spec.folder.string(), " does not exist"),
                  own_place ? "scripts/setup.sh installs Debian's package dataset-fashion-mnist, or name a folder: "
                              "--data fashion-mnist:DIR"
                            : "relative paths begin at the current folder");
}

}  // namespace lockstep::cli
