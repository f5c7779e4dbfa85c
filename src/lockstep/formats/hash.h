#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace lockstep::formats {

/// SHA-256 over bytes that arrive in pieces. One object hashes one message; not thread-safe.
class Sha256 {
 public:
  /// Throws Error when the cryptography library refuses SHA-256.
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void update(std::span<const std::byte> bytes);

  /// The digest as 64 lower-case hexadecimal digits. The object is spent afterwards.
  std::string finish_hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string sha256_hex(std::span<const std::byte> bytes);

/// Digest and length of a file, read in blocks, so that both belong to the same bytes. Throws DataError with the path.
struct FileDigest {
  std::uint64_t size_bytes = 0;
  std::string sha256;
};
FileDigest digest_file(const std::filesystem::path& path);

}  // namespace lockstep::formats
