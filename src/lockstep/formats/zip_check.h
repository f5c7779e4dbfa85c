#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace lockstep::formats {

/// Checks a ZIP archive (PyTorch's .pt files are such): that its directory and every entry lie inside the file, and
/// that each entry's bytes have the size and the CRC-32 of the directory. Entries may be stored or deflated; an entry
/// is unpacked in pieces, so that a small file cannot ask for much memory. Returns the number of entries.
///
/// Throws DataError that names the path, the entry and what was expected: no archive, cut short, altered, encrypted or
/// compressed in another way.
std::uint64_t check_zip(const std::filesystem::path& path);

/// The same for an archive in memory, which errors call `name`.
std::uint64_t check_zip(std::span<const std::byte> archive, std::string_view name);

}  // namespace lockstep::formats
