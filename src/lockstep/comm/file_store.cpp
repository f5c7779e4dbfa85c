#include "lockstep/comm/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::comm {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

FileStore::FileStore(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw SystemError::from_errno(text("cannot make the store's folder ", folder_.string()), error.value());
}

/// Letters, digits and "-" stand for themselves, every other byte becomes %XX.
fs::path FileStore::path_of(std::string_view key) const {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string file = "key.";
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '-') {
      file.push_back(c);
    } else {
      file += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return folder_ / file;
}

/// By rename, so that readers see the old value or the new one.
void FileStore::replace(std::string_view key, std::string_view value) {
  static std::atomic<std::uint64_t> count{0};
  const fs::path temporary = folder_ / text("new.", ::getpid(), ".", count.fetch_add(1));
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd || !try_write_all(fd.get(), value) || ::rename(temporary.c_str(), path_of(key).c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw SystemError::from_errno(text("cannot write a key of the store in ", folder_.string()), error);
  }
}

void FileStore::set(std::string_view key, std::string_view value) {
  replace(key, value);
}

std::string FileStore::get(std::string_view key, milliseconds timeout) {
  const fs::path path = path_of(key);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (::access(path.c_str(), F_OK) != 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw TimeoutError(text("nobody set the key \"", key, "\" in the store ", folder_.string(), " within ",
                              format_duration(timeout)));
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return read_file(path);
}

std::int64_t FileStore::add(std::string_view key, std::int64_t amount) {
  // Each call opens the lock file anew, which makes the lock hold between threads as well as between processes.
  const UniqueFd lock(::open((folder_ / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) {
    throw SystemError::from_errno(text("cannot lock the store in ", folder_.string()), errno);
  }
  const fs::path path = path_of(key);
  long long number = 0;
  if (::access(path.c_str(), F_OK) == 0 && !parse_number(read_file(path), number)) {
    throw CommError(text("the store's key \"", key, "\" holds no number"));
  }
  number += amount;
  replace(key, text(number));
  return number;
}

}  // namespace lockstep::comm
