#pragma once

// What the tests of this folder share: making small files, whole, damaged and compressed.

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::formats {

inline std::string big_endian_word(std::uint32_t value) {
  std::string word;
  for (int shift = 24; shift >= 0; shift -= 8) word.push_back(static_cast<char>(value >> shift & 0xff));
  return word;
}

inline std::string idx_images(std::uint32_t count, std::uint32_t rows, std::uint32_t cols, std::size_t body_bytes) {
  std::string file = big_endian_word(2051) + big_endian_word(count) + big_endian_word(rows) + big_endian_word(cols);
  for (std::size_t i = 0; i < body_bytes; ++i) file.push_back(static_cast<char>(i * 31 + i / 256));
  return file;
}

inline std::string idx_labels(std::uint32_t count, std::size_t body_bytes) {
  std::string file = big_endian_word(2049) + big_endian_word(count);
  for (std::size_t i = 0; i < body_bytes; ++i) file.push_back(static_cast<char>(i % 10));
  return file;
}

inline std::string gzip(const std::string& content) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) return {};
  std::string out(deflateBound(&stream, content.size()) + 32, '\0');
  std::string input = content;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// A fixture with a folder of its own.
class FileTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) {
    write_file_atomic(folder_.path() / name, content);
    return folder_.path() / name;
  }
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }

  TemporaryDirectory folder_{"formats-test"};
};

inline std::span<const std::byte> bytes_of(const std::string& content) {
  return std::as_bytes(std::span(content));
}

/// The text of the lockstep error that `body` throws; fails the test when there is none.
template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return {};
}

}  // namespace lockstep::formats
