#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace lockstep::formats {

/// The bytes of a file one after another, decompressed on the way when the file is gzip-compressed. Whether it is, is
/// read from its content, never from its name: downloads and hand-made copies have both kinds under both names.
///
/// Memory in use is what the caller hands to read(), whatever the file claims. Not thread-safe.
class MaybeGzipFile {
 public:
  /// Throws DataError that names the path when it is missing, a folder or unreadable.
  explicit MaybeGzipFile(std::filesystem::path path);
  MaybeGzipFile(MaybeGzipFile&&) noexcept;
  MaybeGzipFile& operator=(MaybeGzipFile&&) noexcept;
  ~MaybeGzipFile();

  bool gzipped() const noexcept;

  /// More bytes than this cannot come out: the file's size, or 1032 times it (DEFLATE's greatest ratio). Check an
  /// untrusted length against it before allocating.
  std::uint64_t size_bound() const noexcept;

  /// Fills `out` from where the last call ended; fewer bytes are returned only at the end of the data. Throws DataError
  /// that names the path, the place and what is wrong when the compressed stream is cut off or damaged.
  std::size_t read(std::span<std::byte> out);

  /// Reads on to the end without keeping anything and returns how many bytes that were, at most `limit` + 1.
  std::uint64_t skip_rest(std::uint64_t limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The whole content. Throws DataError when it would be longer than `max_bytes`.
std::vector<std::byte> read_maybe_gzip(const std::filesystem::path& path, std::uint64_t max_bytes);

}  // namespace lockstep::formats
