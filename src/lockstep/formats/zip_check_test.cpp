#include "lockstep/formats/zip_check.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstddef>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::formats {
namespace {

std::string little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

std::string deflated(const std::string& content) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(content.size() + 100, '\0'), in = content;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

struct Options {
  int method = 0;
  int flags = 0;
  bool in64 = false;         // sizes and places in ZIP64 fields
  std::uint64_t longer = 0;  // bytes that the directory claims beyond the content
};

/// An archive of two entries of the same content.
std::string archive(const std::string& content, const Options& options = {}) {
  const std::string packed = options.method == 8 ? deflated(content) : content;
  const auto crc = crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size()));
  std::string out, directory;
  for (const std::string name : {"net/data/0", "net/code"}) {
    const std::uint64_t place = out.size(), bytes = content.size() + options.longer;
    const std::string extra =
        options.in64 ? little(1, 2) + little(24, 2) + little(bytes, 8) + little(packed.size(), 8) + little(place, 8)
                     : "";
    const auto number = [&](std::uint64_t value) { return little(options.in64 ? 0xffffffff : value, 4); };
    const std::string common = little(20, 2) + little(options.flags, 2) + little(options.method, 2) + little(0, 4) +
                               little(crc, 4) + number(packed.size()) + number(bytes) + little(name.size(), 2);
    out += "PK\x03\x04" + common + little(5, 2) + name + "PADDY" + packed;
    directory += "PK\x01\x02" + little(20, 2) + common + little(extra.size(), 2) + little(3, 2) + little(0, 8) +
                 number(place) + name + extra + "why";
  }
  const std::uint64_t start = out.size();
  out += directory;
  if (options.in64) {
    const std::uint64_t end64 = out.size();
    out += "PK\x06\x06" + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 8) + little(2, 8) + little(2, 8) +
           little(directory.size(), 8) + little(start, 8);
    out += "PK\x06\x07" + little(0, 4) + little(end64, 8) + little(1, 4);
    return out + "PK\x05\x06" + little(0, 4) + little(0xffff, 2) + little(0xffff, 2) + little(0xffffffff, 4) +
           little(0xffffffff, 4) + little(0, 2);
  }
  return out + "PK\x05\x06" + little(0, 4) + little(2, 2) + little(2, 2) + little(directory.size(), 4) +
         little(start, 4) + little(7, 2) + "comment";
}

std::uint64_t check(const std::string& bytes) {
  return check_zip(std::as_bytes(std::span(bytes)), "net.pt");
}

std::string error_of(const std::string& bytes) {
  try {
    check(bytes);
  } catch (const DataError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

const std::string kContent = std::string(70000, 'a') + "weights" + std::string(70000, 'b');

TEST(ZipCheck, TakesStoredDeflatedAndZip64) {
  for (const int method : {0, 8}) {
    for (const bool in64 : {false, true}) EXPECT_EQ(check(archive(kContent, {.method = method, .in64 = in64})), 2U);
  }
  EXPECT_EQ(check(archive("")), 2U);
}

TEST(ZipCheck, AnAlteredByteOfAnEntryIsNamed) {
  for (const int method : {0, 8}) {
    std::string bytes = archive(kContent, {.method = method});
    char& content = bytes[30 + std::string("net/data/0PADDY").size() + 20];
    content = static_cast<char>(content ^ 1);
    const std::string error = error_of(bytes);
    EXPECT_NE(error.find("net.pt: damaged or no ZIP archive: entry net/data/0"), std::string::npos) << error;
  }
}

TEST(ZipCheck, NamesWhatItCannotRead) {
  EXPECT_NE(error_of("").find("only 0 bytes"), std::string::npos);
  EXPECT_NE(error_of(std::string(100, 'x')).find("no end of a directory"), std::string::npos);
  EXPECT_NE(error_of(archive(kContent, {.method = 12})).find("method 12"), std::string::npos);
  EXPECT_NE(error_of(archive(kContent, {.flags = 1})).find("encrypted"), std::string::npos);
  EXPECT_NE(error_of(archive(kContent, {.method = 8, .longer = 1})).find("checksum"), std::string::npos);
  const TemporaryDirectory folder("zip");
  EXPECT_THROW(check_zip(folder.path() / "missing"), DataError);
  EXPECT_THROW(check_zip(folder.path()), DataError);
}

TEST(ZipCheck, AnyCutAndAnyByteIsTakenOrRefusedWithoutHarm) {
  int refused = 0;
  for (const bool in64 : {false, true}) {
    for (const int method : {0, 8}) {
      const std::string whole = archive("some content", {.method = method, .in64 = in64});
      for (std::size_t size = 0; size < whole.size() - 7; ++size) EXPECT_THROW(check(whole.substr(0, size)), DataError);
      for (std::size_t at = 0; at < whole.size(); ++at) {
        for (const int value : {0x00, 0x7f, 0xff}) {
          std::string damaged = whole;
          damaged[at] = static_cast<char>(value);
          try {
            EXPECT_LE(check(damaged), 2U);
          } catch (const DataError&) {
            ++refused;
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace lockstep::formats
