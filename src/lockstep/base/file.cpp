#include "lockstep/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep {

namespace fs = std::filesystem;

void UniqueFd::reset(int fd) noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

TemporaryDirectory::TemporaryDirectory(std::string_view prefix) {
  std::error_code ignored;
  fs::path base = fs::temp_directory_path(ignored);
  if (base.empty()) base = "/tmp";
  std::string pattern = (base / text(prefix, ".XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw SystemError::from_errno(text("cannot make a temporary folder ", pattern), errno);
  }
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

MappedMemory MappedMemory::read_only(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    throw DataError(text(path.string(), ": cannot be opened: ", SystemError::from_errno("open", errno).what()));
  }
  if (!S_ISREG(status.st_mode)) throw DataError(text(path.string(), ": is not a regular file"));
  MappedMemory mapped;
  mapped.size_bytes_ = static_cast<std::size_t>(status.st_size);
  if (mapped.size_bytes_ == 0) return mapped;
  void* data = ::mmap(nullptr, mapped.size_bytes_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) throw DataError(text(path.string(), ": cannot be mapped into memory"));
  mapped.data_ = static_cast<std::byte*>(data);
  return mapped;
}

MappedMemory MappedMemory::shared(int fd, std::size_t size_bytes) {
  void* data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    throw SystemError::from_errno(text("cannot map ", format_bytes(size_bytes), " of shared memory"), errno);
  }
  MappedMemory mapped;
  mapped.data_ = static_cast<std::byte*>(data);
  mapped.size_bytes_ = size_bytes;
  return mapped;
}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

UniqueFd make_memory_file(std::string_view name, std::size_t size_bytes) {
  UniqueFd fd(::memfd_create(std::string(name).c_str(), MFD_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    throw SystemError::from_errno(text("cannot make a memory file of ", format_bytes(size_bytes)), errno);
  }
  return fd;
}

bool try_write_all(int fd, std::string_view data) noexcept {
  while (!data.empty()) {
    const ssize_t written = ::write(fd, data.data(), data.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    data.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::string read_file(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw DataError(text(path.string(), ": ", SystemError::from_errno("cannot be opened", errno).what()));
  std::string content;
  char block[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd.get(), block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw DataError(text(path.string(), ": ", SystemError::from_errno("cannot be read", errno).what()));
    if (got == 0) return content;
    content.append(block, static_cast<std::size_t>(got));
  }
}

namespace {

[[noreturn]] void fail_write(const fs::path& path, const fs::path& temporary, std::uint64_t needed_bytes, int error) {
  std::error_code ignored;
  const auto space = fs::space(path.parent_path().empty() ? fs::path(".") : path.parent_path(), ignored);
  ::unlink(temporary.c_str());
  throw SystemError::from_errno(
      text(path.string(), ": cannot write ", format_bytes(needed_bytes), " (", format_bytes(space.available), " free)"),
      error);
}

}  // namespace

void write_file_atomic(const fs::path& path, std::string_view content) {
  write_file_atomic(path, std::span<const std::string_view>(&content, 1));
}

void write_file_atomic(const fs::path& path, std::span<const std::string_view> pieces) {
  std::error_code unknown;
  const auto present = fs::status(path, unknown);
  if (fs::exists(present) && !fs::is_regular_file(present)) {
    throw SystemError(text(path.string(), ": is no regular file; it is left as it is"));
  }
  static std::atomic<unsigned> counter{0};
  std::uint64_t needed_bytes = 0;
  for (const auto piece : pieces) needed_bytes += piece.size();
  fs::path temporary = path;
  temporary += text(".tmp-", ::getpid(), "-", counter.fetch_add(1));
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) fail_write(path, temporary, needed_bytes, errno);
  for (const auto piece : pieces) {
    if (!try_write_all(fd.get(), piece)) fail_write(path, temporary, needed_bytes, errno);
  }
  if (::fsync(fd.get()) != 0) fail_write(path, temporary, needed_bytes, errno);
  fd.reset();
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail_write(path, temporary, needed_bytes, errno);
  sync_directory(path.parent_path());
}

void sync_directory(const fs::path& path) {
  const fs::path folder = path.empty() ? fs::path(".") : path;
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) {
    throw SystemError::from_errno(text(folder.string(), ": cannot be synchronised to disk"), errno);
  }
}

}  // namespace lockstep
