#include "lockstep/formats/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::formats {

namespace {

constexpr std::uint64_t kGreatestRatio = 1032;
constexpr int kGzipOnly = 16 + MAX_WBITS;

bool starts_like_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

MappedMemory map_regular_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) throw DataError(text(path.string(), ": is a folder, expected a file"));
  if (!std::filesystem::exists(status)) throw DataError(text(path.string(), ": no such file"));
  // A FIFO would block in open(); devices have no size.
  if (!std::filesystem::is_regular_file(status)) throw DataError(text(path.string(), ": is not a regular file"));
  return MappedMemory::read_only(path);
}

}  // namespace

struct MaybeGzipFile::State {
  std::filesystem::path path;
  MappedMemory file;
  std::size_t position = 0;  // in the file as stored
  bool gzipped = false;
  bool at_end = false;
  z_stream stream{};

  explicit State(std::filesystem::path given) : path(std::move(given)), file(map_regular_file(path)) {
    gzipped = starts_like_gzip(file.bytes());
    if (gzipped && inflateInit2(&stream, kGzipOnly) != Z_OK) throw Error("zlib cannot start to decompress");
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (gzipped) inflateEnd(&stream);
  }

  std::size_t read_plain(std::span<std::byte> out) {
    const auto rest = file.bytes().subspan(position);
    const std::size_t count = std::min(out.size(), rest.size());
    if (count != 0) std::memcpy(out.data(), rest.data(), count);
    position += count;
    return count;
  }

  std::size_t read_inflated(std::span<std::byte> out);
  void finish_member();
  [[noreturn]] void fail(std::string_view what) const {
    throw DataError(
        text(path.string(), ": damaged gzip file: ", what, " at byte ", position, " of ", file.size_bytes()),
        "copy or download the file again");
  }
};

std::size_t MaybeGzipFile::State::read_inflated(std::span<std::byte> out) {
  constexpr std::size_t kMaxStep = std::numeric_limits<uInt>::max();
  std::size_t done = 0;
  while (done < out.size() && !at_end) {
    const auto input = file.bytes().subspan(position);
    // zlib's interface is not const-correct; it does not write to its input.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input.data()));
    stream.avail_in = static_cast<uInt>(std::min(input.size(), kMaxStep));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    stream.avail_out = static_cast<uInt>(std::min(out.size() - done, kMaxStep));
    const uInt given_in = stream.avail_in;
    const uInt given_out = stream.avail_out;
    const int result = inflate(&stream, Z_NO_FLUSH);
    position += given_in - stream.avail_in;
    done += given_out - stream.avail_out;
    if (result == Z_STREAM_END) {
      finish_member();
    } else if (result == Z_MEM_ERROR) {
      throw Error(text(path.string(), ": no memory to decompress"));
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail(stream.msg != nullptr ? stream.msg : "invalid stream");
    } else if (position == file.size_bytes() && stream.avail_out != 0) {
      fail("the stream is cut off");
    }
  }
  return done;
}

// A gzip file is one member or several in a row; anything else behind a member is not gzip.
void MaybeGzipFile::State::finish_member() {
  const auto rest = file.bytes().subspan(position);
  if (rest.empty()) {
    at_end = true;
  } else if (starts_like_gzip(rest)) {
    if (inflateReset(&stream) != Z_OK) fail("invalid stream");
  } else {
    fail(text(rest.size(), " foreign bytes after the end of the stream"));
  }
}

MaybeGzipFile::MaybeGzipFile(std::filesystem::path path) : state_(std::make_unique<State>(std::move(path))) {}
MaybeGzipFile::MaybeGzipFile(MaybeGzipFile&&) noexcept = default;
MaybeGzipFile& MaybeGzipFile::operator=(MaybeGzipFile&&) noexcept = default;
MaybeGzipFile::~MaybeGzipFile() = default;

bool MaybeGzipFile::gzipped() const noexcept {
  return state_->gzipped;
}

std::uint64_t MaybeGzipFile::size_bound() const noexcept {
  const std::uint64_t stored = state_->file.size_bytes();
  return state_->gzipped ? stored * kGreatestRatio : stored;
}

std::size_t MaybeGzipFile::read(std::span<std::byte> out) {
  return state_->gzipped ? state_->read_inflated(out) : state_->read_plain(out);
}

std::uint64_t MaybeGzipFile::skip_rest(std::uint64_t limit) {
  std::vector<std::byte> block(std::size_t{1} << 16);
  std::uint64_t skipped = 0;
  while (skipped <= limit) {
    const std::size_t got = read(block);
    skipped += got;
    if (got < block.size()) break;
  }
  return std::min(skipped, limit + 1);
}

std::vector<std::byte> read_maybe_gzip(const std::filesystem::path& path, std::uint64_t max_bytes) {
  MaybeGzipFile file(path);
  std::vector<std::byte> content;
  std::size_t chunk = std::size_t{1} << 16;
  for (;;) {
    const std::size_t before = content.size();
    content.resize(before + chunk);
    const std::size_t got = file.read(std::span(content).subspan(before));
    content.resize(before + got);
    if (content.size() > max_bytes) {
      throw DataError(text(path.string(), ": holds more than the ", max_bytes, " bytes accepted here"));
    }
    if (got < chunk) return content;
    chunk = std::min(2 * chunk, std::size_t{1} << 24);
  }
}

}  // namespace lockstep::formats
