#include "lockstep/formats/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/gzip.h"
#include "lockstep/formats/hash.h"
#include "lockstep/formats/json_error.h"

namespace lockstep::formats {

namespace fs = std::filesystem;
using nlohmann::json;
using Kind = ManifestProblem::Kind;

namespace {

constexpr const char* kSchema = "lockstep.manifest/1";
constexpr std::uint64_t kMaxManifestBytes = 64 << 20;

// A manifest may come from anywhere: a name in it must not lead out of the folder.
bool stays_inside(const std::string& name) {
  if (name.empty() || name.find('\0') != std::string::npos || name.starts_with('/')) return false;
  for (const auto& part : split(name, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return name != kManifestName;
}

bool is_sha256(const std::string& digest) {
  return digest.size() == 64 && digest.find_first_not_of("0123456789abcdef") == std::string::npos;
}

void check_entries(std::string_view where, const std::vector<ManifestEntry>& files) {
  std::set<std::string_view> names;
  for (const auto& file : files) {
    if (!stays_inside(file.name)) throw DataError(text(where, ": \"", file.name, "\" is no name of a file inside it"));
    if (!names.insert(file.name).second) throw DataError(text(where, ": \"", file.name, "\" is listed twice"));
    if (!is_sha256(file.sha256)) {
      throw DataError(text(where, ": sha256 of \"", file.name, "\" is no string of 64 hexadecimal digits"));
    }
  }
}

ManifestEntry entry_from_json(const json& value) {
  const json& size = value.at("size");
  if (!size.is_number_unsigned()) throw DataError("\"size\" is no whole number from 0 up");
  return {value.at("name").get<std::string>(), size.get<std::uint64_t>(), value.at("sha256").get<std::string>()};
}

// nullopt-like: an empty string when the file is as its entry says.
std::string compare(const fs::path& path, const ManifestEntry& entry, Kind& kind) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::is_regular_file(status)) {
    kind = Kind::kMissing;
    return text(path.string(), fs::exists(status) ? ": is no regular file" : ": is missing", ", expected ",
                entry.size_bytes, " bytes");
  }
  const std::uint64_t size_bytes = fs::file_size(path, error);
  if (error || size_bytes != entry.size_bytes) {
    kind = Kind::kSizeDiffers;
    return text(path.string(), ": has ", error ? 0 : size_bytes, " bytes, expected ", entry.size_bytes);
  }
  try {
    const FileDigest digest = digest_file(path);
    if (digest.sha256 == entry.sha256 && digest.size_bytes == entry.size_bytes) return {};
    kind = Kind::kChecksumDiffers;
    return text(path.string(), ": SHA-256 is ", digest.sha256, ", expected ", entry.sha256);
  } catch (const DataError& unreadable) {
    kind = Kind::kMissing;
    return unreadable.what();
  }
}

void find_unlisted(const fs::path& folder, const std::set<std::string>& listed,
                   std::vector<ManifestProblem>& problems) {
  std::error_code error;
  std::vector<std::string> found;
  for (auto it = fs::recursive_directory_iterator(folder, error); !error && it != fs::recursive_directory_iterator();
       it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) continue;
    const std::string name = it->path().lexically_relative(folder).generic_string();
    if (name != kManifestName && !listed.contains(name)) found.push_back(name);
  }
  std::sort(found.begin(), found.end());
  for (const auto& name : found) {
    problems.push_back({Kind::kNotListed, name, text((folder / name).string(), ": is not in the manifest")});
  }
}

}  // namespace

void write_manifest(const fs::path& folder, std::vector<ManifestEntry> files) {
  const fs::path path = folder / kManifestName;
  check_entries(path.string(), files);
  std::sort(files.begin(), files.end(), [](const auto& left, const auto& right) { return left.name < right.name; });
  nlohmann::ordered_json document{{"schema", kSchema}, {"files", json::array()}};
  for (const auto& file : files) {
    document["files"].push_back(
        nlohmann::ordered_json{{"name", file.name}, {"size", file.size_bytes}, {"sha256", file.sha256}});
  }
  std::string dumped;
  try {
    dumped = document.dump(2);
  } catch (const json::exception&) {
    throw DataError(text(path.string(), ": a file's name is not valid UTF-8"));
  }
  write_file_atomic(path, dumped + "\n");
}

void write_manifest(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<ManifestEntry> files;
  for (const auto& name : names) {
    if (!stays_inside(name)) throw DataError(text(folder.string(), ": \"", name, "\" is no name of a file inside it"));
    FileDigest digest = digest_file(folder / name);
    files.push_back({name, digest.size_bytes, std::move(digest.sha256)});
  }
  write_manifest(folder, std::move(files));
}

std::vector<ManifestEntry> read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  const auto content = read_maybe_gzip(path, kMaxManifestBytes);
  std::vector<ManifestEntry> files;
  try {
    const auto* begin = reinterpret_cast<const char*>(content.data());
    const json document = json::parse(begin, begin + content.size());
    const std::string schema = document.at("schema").get<std::string>();
    if (schema != kSchema) throw DataError(text("schema is \"", schema, "\", expected \"", kSchema, "\""));
    for (const auto& file : document.at("files")) files.push_back(entry_from_json(file));
  } catch (const json::exception& error) {
    throw DataError(text(path.string(), ": damaged manifest: ", describe(error)));
  } catch (const DataError& error) {
    throw DataError(text(path.string(), ": damaged manifest: ", error.what()));
  }
  check_entries(path.string(), files);
  return files;
}

std::vector<ManifestProblem> verify_manifest(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kManifestName, error)) {
    return {{Kind::kManifestMissing, kManifestName,
             text((folder / kManifestName).string(), ": is missing; the folder's writer did not finish")}};
  }
  std::vector<ManifestEntry> files;
  try {
    files = read_manifest(folder);
  } catch (const DataError& damaged) {
    return {{Kind::kManifestDamaged, kManifestName, damaged.what()}};
  }
  std::vector<ManifestProblem> problems;
  std::set<std::string> listed;
  for (const auto& file : files) {
    listed.insert(file.name);
    Kind kind = Kind::kMissing;
    std::string what = compare(folder / file.name, file, kind);
    if (!what.empty()) problems.push_back({kind, file.name, std::move(what)});
  }
  find_unlisted(folder, listed, problems);
  return problems;
}

}  // namespace lockstep::formats
