#include "lockstep/formats/hash.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::formats {

struct Sha256::Context {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(handle); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (context_->handle == nullptr || EVP_DigestInit_ex(context_->handle, EVP_sha256(), nullptr) != 1) {
    throw Error("libcrypto cannot compute SHA-256");
  }
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(context_->handle, bytes.data(), bytes.size()) != 1) throw Error("SHA-256 failed in libcrypto");
}

std::string Sha256::finish_hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  if (EVP_DigestFinal_ex(context_->handle, digest, &length) != 1) throw Error("SHA-256 failed in libcrypto");
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * length);
  for (unsigned i = 0; i < length; ++i) {
    hex.push_back(kDigits[digest[i] >> 4]);
    hex.push_back(kDigits[digest[i] & 15]);
  }
  return hex;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish_hex();
}

FileDigest digest_file(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw DataError(SystemError::from_errno(text(path.string(), ": cannot be opened"), errno).what());
  Sha256 hash;
  FileDigest digest;
  std::vector<std::byte> block(1 << 20);
  for (;;) {
    const ssize_t got = ::read(fd.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw DataError(SystemError::from_errno(text(path.string(), ": cannot be read"), errno).what());
    if (got == 0) break;
    hash.update(std::span(block).first(static_cast<std::size_t>(got)));
    digest.size_bytes += static_cast<std::uint64_t>(got);
  }
  digest.sha256 = hash.finish_hex();
  return digest;
}

}  // namespace lockstep::formats
