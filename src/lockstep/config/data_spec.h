#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::config {

/// A data specification taken apart: "cifar10:DIR", "synthetic:3x32x32:4096".
struct DataSpec {
  std::string kind;                                  ///< fashion-mnist, mnist, cifar10, cifar100, synthetic
  std::optional<std::filesystem::path> folder;       ///< where the files are, when it was given
  std::int64_t channels = 0, height = 0, width = 0;  ///< synthetic only
  std::int64_t count = 4096;                         ///< synthetic only: training images
};

/// Throws ConfigError that starts with `place`, names the word and the accepted forms.
DataSpec parse_data_spec(std::string_view word, std::string_view place);

/// Looks whether the folder of a specification exists and holds files of its kind, so that a typing error is told
/// before anything starts. What is in the files is checked by whoever reads them. Throws DataError that names the path.
void check_data_exists(const DataSpec& spec);

}  // namespace lockstep::config
