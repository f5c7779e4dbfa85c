#include "lockstep/formats/idx.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/gzip.h"

namespace lockstep::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::uint32_t kImagesMagic = 2051;
constexpr std::uint32_t kLabelsMagic = 2049;
// How far a body that is too long is counted for the message.
constexpr std::uint64_t kMaxSurplus = std::uint64_t{1} << 30;
// Memory for a compressed body before any of it was seen; doubled as it comes.
constexpr std::size_t kFirstRoom = std::size_t{16} << 20;

std::uint32_t big_endian(const std::byte* bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

std::string hexadecimal(std::uint32_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) out.push_back(kDigits[value >> shift & 15]);
  return out;
}

// A page may begin with a byte-order mark and with blank lines.
bool looks_like_html(std::string_view beginning) {
  if (beginning.starts_with("\xef\xbb\xbf")) beginning.remove_prefix(3);
  return trim(beginning).starts_with('<');
}

// What a wrong magic number usually means.
std::string guess_cause(std::uint32_t found, std::uint32_t expected, std::string_view beginning, bool gunzipped) {
  if (found >> 16 == 0x1f8b) return "the file is gzip-compressed twice: run gunzip on it once";
  if (found == kLabelsMagic && expected == kImagesMagic) return "this is a label file: images and labels are swapped";
  if (found == kImagesMagic && expected == kLabelsMagic) return "this is an image file: images and labels are swapped";
  if (looks_like_html(beginning))
    return "this looks like an HTML page, such as a download that failed: download the file again";
  if (beginning.starts_with("PK")) return "this is a ZIP archive: unpack it first";
  return gunzipped ? "the compressed content is no IDX file of bytes" : "this is no IDX file of bytes";
}

struct Free {
  void operator()(std::uint8_t* memory) const noexcept { std::free(memory); }
};

struct Body {
  std::array<std::int64_t, 3> dimensions{1, 1, 1};
  std::int64_t size_bytes = 0;
  std::shared_ptr<std::uint8_t[]> bytes;
};

class Reader {
 public:
  explicit Reader(const fs::path& path) : path_(path), file_(path) {}

  Body read(std::uint32_t expected_magic, int num_dimensions) {
    check_magic(expected_magic);
    Body body;
    body.size_bytes = read_dimensions(body, num_dimensions);
    const std::int64_t header_bytes = 4 + 4 * num_dimensions;
    const std::uint64_t room = file_.size_bound() < static_cast<std::uint64_t>(header_bytes)
                                   ? 0
                                   : file_.size_bound() - static_cast<std::uint64_t>(header_bytes);
    if (static_cast<std::uint64_t>(body.size_bytes) > room) {
      throw DataError(text(describe(body), ", but the file ", file_.gzipped() ? "can hold at most " : "holds ", room),
                      "the file is cut off or its header is wrong: download it again");
    }
    fill(body);
    return body;
  }

 private:
  void check_magic(std::uint32_t expected) {
    std::array<std::byte, 4> word;
    const std::size_t got = file_.read(word);
    if (got < word.size()) {
      throw DataError(text(path_.string(), ": ", got == 0 ? "is empty" : text("has only ", got, " bytes"),
                           ", expected the IDX magic number ", expected, " (", hexadecimal(expected), ")"));
    }
    const std::uint32_t found = big_endian(word.data());
    if (found != expected) {
      throw DataError(text(path_.string(), ": magic number is ", found, " (", hexadecimal(found), "), expected ",
                           expected, " (", hexadecimal(expected), ")"),
                      guess_cause(found, expected, beginning(word), file_.gzipped()));
    }
  }

  // The first bytes of the file, of which `word` has been read.
  std::string beginning(std::span<const std::byte> word) {
    std::array<std::byte, 252> more;
    const std::size_t got = file_.read(more);
    return std::string(reinterpret_cast<const char*>(word.data()), word.size()) +
           std::string(reinterpret_cast<const char*>(more.data()), got);
  }

  // Returns the size of the body in bytes.
  std::int64_t read_dimensions(Body& body, int num_dimensions) {
    std::array<std::byte, 12> words;
    const auto header = std::span(words).first(static_cast<std::size_t>(4 * num_dimensions));
    const std::size_t got = file_.read(header);
    if (got < header.size()) {
      throw DataError(text(path_.string(), ": header is cut off: ", 4 + got, " bytes, expected ", 4 + header.size()));
    }
    std::int64_t product = 1;
    for (int d = 0; d < num_dimensions; ++d) {
      const std::uint32_t size = big_endian(words.data() + 4 * d);
      body.dimensions[static_cast<std::size_t>(d)] = size;
      if (size == 0 || size > std::numeric_limits<std::int32_t>::max()) {
        throw DataError(text(path_.string(), ": dimension ", d, " is ", size, " (bytes ", 4 + 4 * d, " to ", 7 + 4 * d,
                             "), expected 1 to 2147483647"));
      }
      if (__builtin_mul_overflow(product, std::int64_t{size}, &product)) {
        throw DataError(text(path_.string(), ": the product of the dimensions in the header overflows"));
      }
    }
    return product;
  }

  // How much a compressed file really holds shows only on the way: memory grows with what has come, so that a header
  // that lies costs none. realloc() moves large blocks without copying them.
  void fill(Body& body) {
    const auto size = static_cast<std::size_t>(body.size_bytes);
    std::unique_ptr<std::uint8_t, Free> bytes;
    std::size_t room = 0, got = 0;
    while (got == room && got < size) {
      room = file_.gzipped() ? std::min(size, std::max(2 * room, kFirstRoom)) : size;
      auto* larger = static_cast<std::uint8_t*>(std::realloc(bytes.get(), room));
      if (larger == nullptr) throw Error(text(describe(body), ": there is no memory for them"));
      static_cast<void>(bytes.release());
      bytes.reset(larger);
      got += file_.read(std::as_writable_bytes(std::span(larger + got, room - got)));
    }
    body.bytes = std::shared_ptr<std::uint8_t[]>(bytes.release(), Free());
    if (got < size) throw DataError(text(describe(body), ", but the file holds ", got));
    const std::uint64_t surplus = file_.skip_rest(kMaxSurplus);
    if (surplus != 0) {
      throw DataError(text(describe(body), ", but the file holds ", surplus > kMaxSurplus ? "over " : "",
                           size + std::min(surplus, kMaxSurplus)));
    }
  }

  std::string describe(const Body& body) const {
    return text(path_.string(), ": the header promises ", body.dimensions[0], " samples, ", body.size_bytes,
                " bytes of data");
  }

  fs::path path_;
  MaybeGzipFile file_;
};

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

fs::path find_idx_file(const fs::path& path) {
  if (is_there(path)) return path;
  fs::path twin = path;
  if (path.extension() == ".gz") {
    twin.replace_extension();
  } else {
    twin += ".gz";
  }
  if (is_there(twin)) return twin;
  throw DataError(text(path.string(), ": no such file, and no ", twin.filename().string(), " beside it"));
}

IdxImages read_idx_images(const fs::path& path) {
  IdxImages images;
  images.path = find_idx_file(path);
  const Body body = Reader(images.path).read(kImagesMagic, 3);
  images.count = body.dimensions[0];
  images.rows = body.dimensions[1];
  images.cols = body.dimensions[2];
  images.pixels = body.bytes;
  return images;
}

IdxLabels read_idx_labels(const fs::path& path) {
  IdxLabels labels;
  labels.path = find_idx_file(path);
  const Body body = Reader(labels.path).read(kLabelsMagic, 1);
  labels.labels.assign(body.bytes.get(), body.bytes.get() + body.size_bytes);
  return labels;
}

IdxSet read_idx_set(const fs::path& images, const fs::path& labels, int num_classes) {
  // Labels first: a mistake in the small file is found before the large one is decompressed.
  IdxSet set;
  set.labels = read_idx_labels(labels);
  set.images = read_idx_images(images);
  const auto num_labels = static_cast<std::int64_t>(set.labels.labels.size());
  if (num_labels != set.images.count) {
    throw DataError(text(set.images.path.string(), " holds ", set.images.count, " images, ", set.labels.path.string(),
                         " ", num_labels, " labels: the counts must agree"));
  }
  for (std::size_t i = 0; i < set.labels.labels.size(); ++i) {
    if (set.labels.labels[i] >= num_classes) {
      throw DataError(text(set.labels.path.string(), ": label ", int{set.labels.labels[i]}, " of sample ", i, " (byte ",
                           8 + i, " of the data) is out of range, expected 0 to ", num_classes - 1));
    }
  }
  return set;
}

}  // namespace lockstep::formats
