#include "lockstep/formats/safetensors.h"

#include <gmock/gmock.h>

#include <cstring>

#include "lockstep/base/text.h"
#include "lockstep/formats/hash.h"
#include "lockstep/formats/test_files.h"

namespace lockstep::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Safetensors : public FileTest {
 protected:
  static std::string file_of(const std::string& header, std::size_t data_bytes) {
    std::string out(8, '\0');
    const std::uint64_t length = header.size();
    std::memcpy(out.data(), &length, 8);
    return out + header + std::string(data_bytes, 'd');
  }
  std::string error_for(const std::string& content) {
    const auto file = write("bad.safetensors", content);
    const std::string message = error_of([&] { SafetensorsFile{file}; });
    EXPECT_THAT(message, HasSubstr(file.string()));
    return message;
  }
  std::string header_error(const std::string& header, std::size_t data_bytes = 8) {
    return error_for(file_of(header, data_bytes));
  }
};

TEST_F(Safetensors, WritesAndReadsBack) {
  const float weights[] = {1, 2, 3, 4, 5, 6};
  const double scale[] = {0.5};
  const std::int64_t steps[] = {7, 8};
  const std::uint8_t mask[] = {1, 0, 1};
  const std::vector<TensorView> tensors{{"z.mask", "BOOL", {3}, std::as_bytes(std::span(mask))},
                                        {"a.weight", "F32", {2, 3}, std::as_bytes(std::span(weights))},
                                        {"scale \"quoted\" \u00e9", "F64", {}, std::as_bytes(std::span(scale))},
                                        {"none", "F16", {0, 4}, {}},
                                        {"steps", "I64", {2}, std::as_bytes(std::span(steps))}};
  const WrittenFile written = write_safetensors(path("x.safetensors"), tensors, {{"format", "pt"}});
  EXPECT_EQ(written.size_bytes, std::filesystem::file_size(path("x.safetensors")));
  EXPECT_EQ(written.sha256, digest_file(path("x.safetensors")).sha256);

  const SafetensorsFile file(path("x.safetensors"));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& expected : tensors) {
    const TensorView* found = file.find(expected.name);
    ASSERT_NE(found, nullptr) << expected.name;
    EXPECT_EQ(found->dtype, expected.dtype);
    EXPECT_EQ(found->shape, expected.shape);
    ASSERT_EQ(found->bytes.size(), expected.bytes.size());
    EXPECT_TRUE(std::equal(found->bytes.begin(), found->bytes.end(), expected.bytes.begin()));
    if (!found->bytes.empty()) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found->bytes.data()) % dtype_size_bytes(found->dtype), 0U);
    }
  }
  EXPECT_EQ(file.find("weight"), nullptr);
}

// Byte for byte what safetensors.numpy.save writes (0.8.0) for these two arrays.
TEST_F(Safetensors, EqualsTheReferenceWriter) {
  const float weight[] = {1, 2};
  const std::int64_t step[] = {3};
  write_safetensors(path("x"), std::vector<TensorView>{{"w", "F32", {2}, std::as_bytes(std::span(weight))},
                                                       {"step", "I64", {}, std::as_bytes(std::span(step))}});
  std::string header =
      R"({"step":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string expected = file_of(header, 16);
  std::memcpy(expected.data() + expected.size() - 16, step, 8);
  std::memcpy(expected.data() + expected.size() - 8, weight, 8);
  EXPECT_EQ(read_file(path("x")), expected);
}

TEST_F(Safetensors, AcceptsAnEmptyFileOfTensors) {
  write_safetensors(path("x"), {});
  EXPECT_TRUE(SafetensorsFile(path("x")).tensors().empty());
}

TEST_F(Safetensors, RefusesBadHeaderLengths) {
  EXPECT_THAT(error_for(""), HasSubstr("0 bytes, expected at least 8"));
  EXPECT_THAT(error_for(std::string(8, '\xff')), HasSubstr("expected at most 100000000"));
  EXPECT_THAT(error_for(file_of("{}", 0).substr(0, 9)), HasSubstr("header length is 2 (bytes 0 to 7), but only 1"));
  EXPECT_THAT(header_error(" {}", 0), HasSubstr("does not start with '{'"));
  EXPECT_THAT(error_of([&] { SafetensorsFile{path("none")}; }), HasSubstr("none"));
}

TEST_F(Safetensors, RefusesBadHeaders) {
  const auto entry = [](const std::string& name, const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return text("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets, "}");
  };
  const auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return header_error(text("{", entry("w", dtype, shape, offsets), "}"));
  };
  EXPECT_THAT(header_error("{\"w\":"), HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(header_error("{\"w\":3}"), HasSubstr("a number at key \"w\""));
  EXPECT_THAT(header_error("{\"w\":{}}"), HasSubstr("no complete dtype, shape and data_offsets (tensor \"w\")"));
  EXPECT_THAT(header_error("{\"__metadata__\":{\"a\":1}}"), HasSubstr("a number at key \"a\""));
  EXPECT_THAT(header_error(text("{", std::string(100000, '['))), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error(text("{\"w\":", std::string(100000, '['))), HasSubstr("an array at key \"w\""));
  EXPECT_THAT(header_error("{\"\xff\":1}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(one("F8_E4M3", "[8]", "[0,8]"), AllOf(HasSubstr("dtype \"F8_E4M3\" is unknown"), HasSubstr("BF16")));
  EXPECT_THAT(one("F32", "[3]", "[0,8]"), HasSubstr("spans 8 bytes, but its dtype and shape need 12"));
  EXPECT_THAT(one("F32", "[2]", "[0,16]"), HasSubstr("data_offsets [0, 16), expected a begin of 0 and an end up to 8"));
  EXPECT_THAT(one("U8", "[4]", "[4,8]"), HasSubstr("expected a begin of 0"));
  EXPECT_THAT(one("U8", "[4]", "[0,4]"), HasSubstr("the tensors end at byte 4 of the data, but it has 8"));
  EXPECT_THAT(one("U8", "[4]", "[8,4]"), HasSubstr("data_offsets [8, 4)"));
  EXPECT_THAT(one("F32", "[-2]", "[0,8]"), HasSubstr("the number -2"));
  EXPECT_THAT(one("F32", "[2.0]", "[0,8]"), HasSubstr("the number 2.0"));
  EXPECT_THAT(one("F32", "[2]", "[0,8,9]"), HasSubstr("a number at key \"data_offsets\""));
  EXPECT_THAT(one("F32", "[2]", "[0]"), HasSubstr("data_offsets of 1 numbers"));
  EXPECT_THAT(one("F32", "[4294967296,4294967296,4294967296]", "[0,8]"), HasSubstr("overflows"));
  EXPECT_THAT(one("F32", "[18446744073709551615]", "[0,8]"), HasSubstr("beyond 2^63 - 1"));
  EXPECT_THAT(header_error(text("{", entry("w", "U8", "[4]", "[0,4]"), ",", entry("w", "U8", "[4]", "[4,8]"), "}")),
              HasSubstr("the key \"w\" twice"));
  EXPECT_THAT(header_error(text("{", entry("v", "U8", "[8]", "[0,8]"), ",", entry("w", "U8", "[4]", "[4,8]"), "}")),
              HasSubstr("tensor \"w\" has data_offsets [4, 8), expected a begin of 8"));
}

TEST_F(Safetensors, WriterRefusesWhatReadersWould) {
  const std::string four(4, 'x');
  const auto error_for_tensors = [&](std::vector<TensorView> tensors) {
    return error_of([&] { write_safetensors(path("x"), tensors); });
  };
  EXPECT_THAT(error_for_tensors({{"w", "F32", {2}, bytes_of(four)}}),
              HasSubstr("has 4 bytes, but its dtype and shape"));
  EXPECT_THAT(error_for_tensors({{"w", "f32", {1}, bytes_of(four)}}), HasSubstr("dtype \"f32\" is unknown"));
  EXPECT_THAT(error_for_tensors({{"w", "F32", {1}, bytes_of(four)}, {"w", "F32", {1}, bytes_of(four)}}),
              HasSubstr("given twice"));
  EXPECT_THAT(error_for_tensors({{"__metadata__", "F32", {1}, bytes_of(four)}}), HasSubstr("reserved"));
  EXPECT_THAT(error_for_tensors({{"\xff", "F32", {1}, bytes_of(four)}}), HasSubstr("UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(path("x")));
}

}  // namespace
}  // namespace lockstep::formats
