#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

/// A folder under $TMPDIR (mode 0700), removed with its contents at the end of its life.
class TemporaryDirectory {
 public:
  /// `prefix` becomes part of the name. Throws SystemError.
  explicit TemporaryDirectory(std::string_view prefix);
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// A whole file, or a shared anonymous region, mapped into memory.
class MappedMemory {
 public:
  MappedMemory() = default;

  /// Maps a file for reading. Throws DataError that names the path when it is missing, a folder or unreadable.
  static MappedMemory read_only(const std::filesystem::path& path);

  /// Maps `size_bytes` of `fd` for reading and writing, shared with every process that maps it. Throws SystemError.
  static MappedMemory shared(int fd, std::size_t size_bytes);

  MappedMemory(MappedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::byte* data() const noexcept { return data_; }
  std::size_t size_bytes() const noexcept { return size_bytes_; }
  std::span<const std::byte> bytes() const noexcept { return {data_, size_bytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

/// An anonymous in-memory file (memfd) of `size_bytes` zeros; close-on-exec. Throws SystemError.
UniqueFd make_memory_file(std::string_view name, std::size_t size_bytes);

/// Writes all of `data`, retrying short writes and EINTR. Returns false with errno set on failure.
bool try_write_all(int fd, std::string_view data) noexcept;

/// Reads a whole file. Throws DataError that names the path.
std::string read_file(const std::filesystem::path& path);

/// Writes a file so that a crash leaves either the old or the new content under `path`: a temporary file in the same
/// folder, fsync, rename, fsync of the folder. Throws SystemError that names the path, the bytes needed and the bytes
/// free; the temporary file is removed then. A device, pipe or folder under that name is refused.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);
void write_file_atomic(const std::filesystem::path& path, std::span<const std::string_view> pieces);

/// fsync of a folder, which makes a rename inside it durable. Throws SystemError.
void sync_directory(const std::filesystem::path& path);

}  // namespace lockstep
