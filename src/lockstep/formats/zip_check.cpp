#include "lockstep/formats/zip_check.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

// PKWARE's APPNOTE.TXT 6.3: at the end of the file a record that says where the directory is; in the directory for each
// entry its sizes, CRC and the place of its local header; behind that header its bytes.
namespace lockstep::formats {

namespace {

constexpr std::uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr std::uint32_t kEntrySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr std::uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20, kEntryBytes = 46, kLocalBytes = 30;
constexpr std::uint64_t kLongestComment = 65535;
constexpr std::uint32_t kIn64 = 0xffffffff;  // the real number is in the ZIP64 extra field
constexpr std::uint16_t kExtra64 = 1, kStored = 0, kDeflated = 8, kEncrypted = 1;

struct Entry {
  std::string name;
  std::uint16_t flags = 0, method = 0;
  std::uint32_t crc = 0;
  std::uint64_t packed_bytes = 0, bytes = 0, local_header = 0;
};

struct Directory {
  std::uint64_t offset = 0, size_bytes = 0, entries = 0;
};

class Archive {
 public:
  Archive(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  std::uint64_t check() const {
    const Directory directory = find_directory();
    std::uint64_t at = directory.offset;
    for (std::uint64_t i = 0; i < directory.entries; ++i) {
      const Entry entry = read_entry(at, directory.offset + directory.size_bytes);
      check_bytes(entry);
    }
    if (at != directory.offset + directory.size_bytes) fail("its directory has more bytes than entries");
    return directory.entries;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw DataError(text(name_, ": damaged or no ZIP archive: ", what));
  }

  std::span<const std::byte> part(std::uint64_t offset, std::uint64_t size, std::string_view what) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) {
      fail(text(what, " at byte ", offset, " reaches beyond the file's ", bytes_.size(), " bytes"));
    }
    return bytes_.subspan(offset, size);
  }

  template <typename Number>
  static Number number(std::span<const std::byte> bytes, std::uint64_t offset) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i) {
      value |= std::to_integer<std::uint64_t>(bytes[offset + i]) << (8 * i);
    }
    return static_cast<Number>(value);
  }

  Directory find_directory() const {
    if (bytes_.size() < kEndBytes) fail(text("it has only ", bytes_.size(), " bytes"));
    const std::uint64_t last = bytes_.size() - kEndBytes;
    const std::uint64_t first = last > kLongestComment ? last - kLongestComment : 0;
    for (std::uint64_t at = last + 1; at-- > first;) {
      if (number<std::uint32_t>(bytes_, at) != kEndSignature) continue;
      const auto end = bytes_.subspan(at, kEndBytes);
      const Directory directory{.offset = number<std::uint32_t>(end, 16),
                                .size_bytes = number<std::uint32_t>(end, 12),
                                .entries = number<std::uint16_t>(end, 10)};
      const bool in64 = directory.offset == kIn64 || directory.size_bytes == kIn64 || directory.entries == 0xffff;
      return checked(in64 ? find_directory64(at) : directory, at);
    }
    fail("it has no end of a directory");
  }

  Directory find_directory64(std::uint64_t end) const {
    if (end < kLocator64Bytes) fail("its ZIP64 locator is missing");
    const auto locator = bytes_.subspan(end - kLocator64Bytes, kLocator64Bytes);
    if (number<std::uint32_t>(locator, 0) != kLocator64Signature) fail("its ZIP64 locator is missing");
    const auto end64 = part(number<std::uint64_t>(locator, 8), kEnd64Bytes, "the ZIP64 end of the directory");
    if (number<std::uint32_t>(end64, 0) != kEnd64Signature) fail("its ZIP64 end of the directory is missing");
    return {.offset = number<std::uint64_t>(end64, 48),
            .size_bytes = number<std::uint64_t>(end64, 40),
            .entries = number<std::uint64_t>(end64, 32)};
  }

  Directory checked(const Directory& directory, std::uint64_t end) const {
    part(directory.offset, directory.size_bytes, "the directory");
    if (directory.offset + directory.size_bytes > end || directory.entries > directory.size_bytes / kEntryBytes) {
      fail(text("a directory of ", directory.entries, " entries and ", directory.size_bytes, " bytes cannot be"));
    }
    return directory;
  }

  /// Moves `at` behind the entry.
  Entry read_entry(std::uint64_t& at, std::uint64_t end) const {
    const auto head = part(at, kEntryBytes, "an entry of the directory");
    if (number<std::uint32_t>(head, 0) != kEntrySignature) fail(text("no entry of the directory at byte ", at));
    const std::uint64_t name_bytes = number<std::uint16_t>(head, 28), extra_bytes = number<std::uint16_t>(head, 30);
    const std::uint64_t total = kEntryBytes + name_bytes + extra_bytes + number<std::uint16_t>(head, 32);
    if (total > end - at) fail(text("the entry at byte ", at, " reaches beyond the directory"));
    const auto name = part(at + kEntryBytes, name_bytes, "a name");
    Entry entry{.name = std::string(reinterpret_cast<const char*>(name.data()), name.size()),
                .flags = number<std::uint16_t>(head, 8),
                .method = number<std::uint16_t>(head, 10),
                .crc = number<std::uint32_t>(head, 16),
                .packed_bytes = number<std::uint32_t>(head, 20),
                .bytes = number<std::uint32_t>(head, 24),
                .local_header = number<std::uint32_t>(head, 42)};
    read_extra64(part(at + kEntryBytes + name_bytes, extra_bytes, "an extra field"), entry);
    at += total;
    return entry;
  }

  /// Sizes and place that do not fit 32 bits, in this order and only those.
  void read_extra64(std::span<const std::byte> extra, Entry& entry) const {
    while (extra.size() >= 4) {
      const auto id = number<std::uint16_t>(extra, 0);
      const std::uint64_t size = number<std::uint16_t>(extra, 2);
      if (size > extra.size() - 4) fail(text("entry ", entry.name, ": its extra field is cut short"));
      auto field = extra.subspan(4, size);
      extra = extra.subspan(4 + size);
      if (id != kExtra64) continue;
      for (auto* value : {&entry.bytes, &entry.packed_bytes, &entry.local_header}) {
        if (*value != kIn64) continue;
        if (field.size() < 8) fail(text("entry ", entry.name, ": its ZIP64 field is cut short"));
        *value = number<std::uint64_t>(field, 0);
        field = field.subspan(8);
      }
    }
  }

  void check_bytes(const Entry& entry) const {
    const auto head = part(entry.local_header, kLocalBytes, text("the header of ", entry.name));
    if (number<std::uint32_t>(head, 0) != kLocalSignature) fail(text("entry ", entry.name, " has no header"));
    if ((entry.flags & kEncrypted) != 0) fail(text("entry ", entry.name, " is encrypted"));
    const std::uint64_t start =
        entry.local_header + kLocalBytes + number<std::uint16_t>(head, 26) + number<std::uint16_t>(head, 28);
    const auto packed = part(start, entry.packed_bytes, text("entry ", entry.name));
    std::optional<std::uint32_t> crc;
    if (entry.method == kStored && entry.bytes == entry.packed_bytes) crc = crc_of(packed);
    if (entry.method == kDeflated) crc = crc_of_deflated(packed, entry.bytes);
    if (entry.method != kStored && entry.method != kDeflated) {
      fail(text("entry ", entry.name, " is compressed by method ", entry.method, ", expected stored or deflated"));
    }
    if (crc != entry.crc) fail(text("entry ", entry.name, ": its bytes do not have the checksum of the directory"));
  }

  static std::uint32_t crc_of(std::span<const std::byte> bytes) {
    return static_cast<std::uint32_t>(
        crc32_z(crc32_z(0, nullptr, 0), reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  }

  /// nullopt unless the stream is whole and unpacks to just `size` bytes.
  static std::optional<std::uint32_t> crc_of_deflated(std::span<const std::byte> packed, std::uint64_t size) {
    constexpr std::uint64_t kPiece = 1 << 30;  // zlib counts in 32 bits
    z_stream stream{};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return std::nullopt;
    std::array<Bytef, 65536> out;
    std::uint64_t unpacked = 0;
    auto crc = crc32_z(0, nullptr, 0);
    int status = Z_OK;
    while (status == Z_OK && unpacked <= size) {
      if (stream.avail_in == 0) {
        const auto piece = packed.first(std::min<std::uint64_t>(packed.size(), kPiece));
        packed = packed.subspan(piece.size());
        stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(piece.data()));
        stream.avail_in = static_cast<uInt>(piece.size());
      }
      stream.next_out = out.data();
      stream.avail_out = static_cast<uInt>(out.size());
      status = inflate(&stream, Z_NO_FLUSH);
      const std::size_t got = out.size() - stream.avail_out;
      crc = crc32_z(crc, out.data(), got);
      unpacked += got;
    }
    const bool whole = status == Z_STREAM_END && unpacked == size && stream.avail_in == 0 && packed.empty();
    inflateEnd(&stream);
    return whole ? std::optional(static_cast<std::uint32_t>(crc)) : std::nullopt;
  }

  const std::span<const std::byte> bytes_;
  const std::string_view name_;
};

}  // namespace

std::uint64_t check_zip(const std::filesystem::path& path) {
  const auto file = MappedMemory::read_only(path);
  return check_zip(file.bytes(), path.string());
}

std::uint64_t check_zip(std::span<const std::byte> archive, std::string_view name) {
  return Archive(archive, name).check();
}

}  // namespace lockstep::formats
