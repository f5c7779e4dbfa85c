#include "lockstep/cli/check_data.h"

#include <algorithm>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/formats/image_set.h"
#include "lockstep/host/memory.h"

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

void check_fits(const formats::ImageSetSpec& spec, int processes, const std::string& start) {
  constexpr std::uint64_t kLabelBytes = 8;
  const auto images = static_cast<std::uint64_t>(spec.num_train + spec.num_eval);
  const std::uint64_t each = images * (static_cast<std::uint64_t>(spec.shape.size()) + kLabelBytes);
  const std::uint64_t needed = each * static_cast<std::uint64_t>(processes);
  const host::MemoryLimit memory = host::memory_limit();
  const std::uint64_t available = std::min(memory.limit_bytes, memory.available_bytes);
  if (needed <= available) return;
  throw DataError(
      text(start, "its ", format_count(images), " images take ", format_bytes(each),
           processes > 1 ? text(" in each of ", processes, " processes, ", format_bytes(needed), " together") : "",
           ", but ", format_bytes(available), " of memory are available (limit of ", memory.source, ": ",
           format_bytes(memory.limit_bytes), ")"),
      text("ask for fewer or smaller images", processes > 1 ? ", or for fewer processes" : ""));
}

}  // namespace

void check_data(const config::FlagValues& values, int processes) {
  const std::string word = values.text("data");
  const formats::ImageSetSpec spec = parse(word, values.place("data"));
  const std::string start = text(values.place("data"), " ", word, ": ");
  if (spec.kind == formats::ImageSetKind::kSynthetic) {
    check_fits(spec, processes, start);
    return;
  }
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
