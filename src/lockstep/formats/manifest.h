#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::formats {

/// A folder's table of contents, "MANIFEST.json": what belongs to it, how long it is and its checksum. It is written
/// after everything else, so a folder without one is a folder whose writer did not finish.
constexpr const char* kManifestName = "MANIFEST.json";

struct ManifestEntry {
  std::string name;  ///< relative to the folder, '/' between parts
  std::uint64_t size_bytes = 0;
  std::string sha256;
};

/// Writes the manifest for files whose size and digest are known already. Throws DataError for a name that leaves the
/// folder or is repeated; SystemError when the disk refuses.
void write_manifest(const std::filesystem::path& folder, std::vector<ManifestEntry> files);

/// Reads sizes and digests of the named files and writes the manifest.
void write_manifest(const std::filesystem::path& folder, const std::vector<std::string>& names);

/// Throws DataError when it is missing, damaged or of another schema.
std::vector<ManifestEntry> read_manifest(const std::filesystem::path& folder);

struct ManifestProblem {
  enum class Kind { kManifestMissing, kManifestDamaged, kMissing, kSizeDiffers, kChecksumDiffers, kNotListed };
  Kind kind;
  std::string name;  ///< the file, relative to the folder
  std::string what;  ///< a sentence with path, expectation and finding
};

/// Compares the folder with its manifest; nothing is thrown for what the files hold. Empty when all is well.
std::vector<ManifestProblem> verify_manifest(const std::filesystem::path& folder);

}  // namespace lockstep::formats
