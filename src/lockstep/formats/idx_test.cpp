#include "lockstep/formats/idx.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "lockstep/formats/gzip.h"
#include "lockstep/formats/test_files.h"

namespace lockstep::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Idx : public FileTest {
 protected:
  std::string images_error(const std::string& content, const std::string& name = "images") {
    const auto file = write(name, content);
    const std::string message = error_of([&] { read_idx_images(file); });
    EXPECT_THAT(message, HasSubstr(file.string()));
    return message;
  }
};

const std::string kGood = idx_images(6, 4, 5, 120);

TEST_F(Idx, BR048_ReadsPlainAndCompressedUnderEitherName) {
  const auto content_of = [](const IdxImages& images) {
    return std::string(reinterpret_cast<const char*>(images.pixels.get()), 120);
  };
  for (const std::string name : {"plain", "named.gz"}) {
    for (const bool compressed : {false, true}) {
      const auto file = write(name, compressed ? gzip(kGood) : kGood);
      const IdxImages images = read_idx_images(file);
      EXPECT_EQ(images.count, 6);
      EXPECT_EQ(images.rows, 4);
      EXPECT_EQ(images.cols, 5);
      EXPECT_EQ(content_of(images), kGood.substr(16)) << name << compressed;
    }
  }
}

TEST_F(Idx, FindsTheTwinWithOrWithoutGz) {
  write("a.gz", gzip(kGood));
  write("b", kGood);
  EXPECT_EQ(read_idx_images(path("a")).path, path("a.gz"));
  EXPECT_EQ(read_idx_images(path("b.gz")).path, path("b"));
}

TEST_F(Idx, ReadsAFileOfSeveralGzipMembers) {
  const auto file = write("members.gz", gzip(kGood.substr(0, 50)) + gzip(kGood.substr(50)));
  EXPECT_EQ(read_idx_images(file).count, 6);
}

TEST_F(Idx, BR048_CutOffGzip) {
  const std::string big = gzip(idx_images(100, 28, 28, 78400));
  EXPECT_THAT(images_error(big.substr(0, big.size() - 1024)), HasSubstr("cut off at byte"));
  EXPECT_THAT(images_error(gzip(kGood).substr(0, gzip(kGood).size() - 3)), HasSubstr("cut off at byte"));
}

TEST_F(Idx, DamagedGzip) {
  std::string flipped = gzip(kGood);
  flipped[flipped.size() - 6] ^= 1;  // the stored CRC-32
  EXPECT_THAT(images_error(flipped), HasSubstr("damaged gzip file: incorrect data check"));
  EXPECT_THAT(images_error(gzip(kGood) + "tail"), HasSubstr("4 foreign bytes after the end"));
}

TEST_F(Idx, BR048_DoubleGzip) {
  EXPECT_THAT(images_error(gzip(gzip(kGood))), AllOf(HasSubstr("magic number is 529205248"), HasSubstr("expected 2051"),
                                                     HasSubstr("compressed twice: run gunzip")));
}

TEST_F(Idx, BR048_HtmlPage) {
  EXPECT_THAT(images_error("<!DOCTYPE html><html><body>404</body></html>"),
              AllOf(HasSubstr("(0x3c21444f), expected 2051"), HasSubstr("HTML page")));
  for (const std::string page : {"<html>", "<HTML lang=en>", "<!doctype html>", "\n<!DOCTYPE html>", "\r\n\r\n <html>",
                                 "\xef\xbb\xbf<!DOCTYPE html>", "\n\n\n\n\n\n<html><body>404</body></html>"}) {
    EXPECT_THAT(images_error(page), HasSubstr("HTML page")) << page;
    EXPECT_THAT(images_error(gzip(page)), HasSubstr("HTML page")) << page;
    const auto file = write("labels", page);
    EXPECT_THAT(error_of([&] { read_idx_labels(file); }), HasSubstr("HTML page")) << page;
  }
  EXPECT_THAT(images_error("\n\n\n\n\n plain text"), HasSubstr("this is no IDX file"));
}

TEST_F(Idx, BR048_SwappedFiles) {
  EXPECT_THAT(images_error(idx_labels(6, 6)), AllOf(HasSubstr("is 2049"), HasSubstr("swapped")));
  const auto images = write("images", kGood);
  EXPECT_THAT(error_of([&] { read_idx_labels(images); }), AllOf(HasSubstr("is 2051"), HasSubstr("expected 2049")));
}

TEST_F(Idx, BR048_HeaderAndBodyDisagree) {
  for (const bool compressed : {false, true}) {
    const auto form = [&](const std::string& content) { return compressed ? gzip(content) : content; };
    EXPECT_THAT(images_error(form(idx_images(60, 28, 28, 59 * 784))),
                AllOf(HasSubstr("promises 60 samples, 47040 bytes"), HasSubstr("46256")));
    EXPECT_THAT(images_error(form(idx_images(60, 28, 28, 61 * 784))),
                AllOf(HasSubstr("promises 60 samples, 47040 bytes"), HasSubstr("the file holds 47824")));
  }
}

TEST_F(Idx, BR048_ImpossibleDimensionsTakeNoMemory) {
  EXPECT_THAT(images_error(idx_images(0, 28, 28, 0)), HasSubstr("dimension 0 is 0 (bytes 4 to 7)"));
  EXPECT_THAT(images_error(idx_images(6, 0, 5, 0)), HasSubstr("dimension 1 is 0"));
  EXPECT_THAT(images_error(idx_images(0x80000000U, 28, 28, 784)), HasSubstr("dimension 0 is 2147483648"));
  EXPECT_THAT(images_error(idx_images(0x7fffffffU, 28, 28, 784)), HasSubstr("but the file holds 784"));
  EXPECT_THAT(images_error(idx_images(0x7fffffffU, 0x7fffffffU, 0x7fffffffU, 8)), HasSubstr("overflows"));
  EXPECT_THAT(images_error(gzip(idx_images(0x7fffffffU, 28, 28, 784))), HasSubstr("can hold at most"));
}

// What `body` adds to the address space of a fresh process at its worst: memory that is asked for counts, used or not.
template <typename Body>
[[noreturn]] void exit_with_growth_in_mib(const Body& body) {
  const auto peak_kib = [] {
    const std::string status = read_file("/proc/self/status");
    return std::stoll(status.substr(status.find("VmPeak:") + 7));
  };
  const auto before = peak_kib();
  try {
    body();
  } catch (const DataError& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::exit(static_cast<int>(std::min<long long>((peak_kib() - before) / 1024, 200)));
}

TEST_F(Idx, BR048_AHeaderThatPromisesTooMuchCostsNoMemory) {
  // 1 MiB that does not compress, so that by its size alone the compressed file could hold 1 GiB.
  std::mt19937 random(48);
  std::string noise(std::size_t{1} << 20, '\0');
  for (auto& byte : noise) byte = static_cast<char>(random());
  const std::string content = idx_images(1'250'000, 28, 28, 0) + noise;  // 980,000,000 bytes are promised
  const auto plain = write("plain", content), compressed = write("compressed", gzip(content));
  const auto labels = write("labels", gzip(idx_labels(980'000'000, 0) + noise));
  const auto little = [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) < 64; };
  EXPECT_EXIT(exit_with_growth_in_mib([&] { read_idx_images(plain); }), little, "promises 1250000 samples");
  EXPECT_EXIT(exit_with_growth_in_mib([&] { read_idx_images(compressed); }), little, "but the file holds 1048576");
  EXPECT_EXIT(exit_with_growth_in_mib([&] { read_idx_labels(labels); }), little, "but the file holds 1048576");
}

TEST_F(Idx, ReadsCompressedFilesOfAnySize) {
  for (const std::uint32_t size : {16U << 20, (16U << 20) + 1, 40U << 20}) {  // the first room, one more, twice doubled
    std::string body(size, '\0');
    for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<char>(i >> 12);
    const auto images = read_idx_images(write("big", gzip(idx_images(size, 1, 1, 0) + body)));
    EXPECT_EQ(images.count, size);
    EXPECT_EQ(std::memcmp(images.pixels.get(), body.data(), size), 0) << size;
  }
}

TEST_F(Idx, BR048_EmptyShortMissingFolder) {
  EXPECT_THAT(images_error(""), HasSubstr("is empty, expected the IDX magic number 2051"));
  EXPECT_THAT(images_error("ab"), HasSubstr("has only 2 bytes"));
  EXPECT_THAT(images_error(kGood.substr(0, 10)), HasSubstr("header is cut off: 10 bytes, expected 16"));
  EXPECT_THAT(error_of([&] { read_idx_images(path("none")); }),
              AllOf(HasSubstr(path("none").string()), HasSubstr("no none.gz beside it")));
  EXPECT_THAT(error_of([&] { read_idx_images(folder_.path()); }), HasSubstr("is a folder"));
}

TEST_F(Idx, BR048_CountsAndLabelsMustFit) {
  const auto images = write("images", kGood);
  EXPECT_EQ(read_idx_set(images, write("labels", idx_labels(6, 6)), 10).labels.labels.size(), 6U);
  const auto five = write("five", idx_labels(5, 5));
  EXPECT_THAT(error_of([&] { read_idx_set(images, five, 10); }),
              AllOf(HasSubstr("6 images"), HasSubstr("5 labels: the counts must agree")));
  const auto labels = write("labels", idx_labels(6, 6));
  EXPECT_THAT(error_of([&] { read_idx_set(images, labels, 5); }), HasSubstr("label 5 of sample 5 (byte 13"));
}

TEST_F(Idx, GzipReaderHoldsItsLimit) {
  const auto bomb = write("bomb", gzip(std::string(10 << 20, '\0')));
  EXPECT_EQ(read_maybe_gzip(bomb, 10 << 20).size(), std::size_t{10 << 20});
  EXPECT_THAT(error_of([&] { read_maybe_gzip(bomb, (10 << 20) - 1); }), HasSubstr("more than the 10485759 bytes"));
}

}  // namespace
}  // namespace lockstep::formats
