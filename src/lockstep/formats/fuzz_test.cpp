// Every reader over thousands of damaged files: each must succeed or throw lockstep::Error. Run it under ASan and UBSan
// for its full worth.

#include <functional>
#include <random>

#include "lockstep/base/text.h"
#include "lockstep/formats/cifar.h"
#include "lockstep/formats/gzip.h"
#include "lockstep/formats/idx.h"
#include "lockstep/formats/manifest.h"
#include "lockstep/formats/safetensors.h"
#include "lockstep/formats/test_files.h"

namespace lockstep::formats {
namespace {

constexpr int kRounds = 3000;

class Fuzz : public FileTest {
 protected:
  // One to three of: flip a bit, set a byte to an edge value, cut the end off, repeat a part, drop a part.
  std::string mutate(std::string content) {
    const int changes = 1 + pick(3);
    for (int i = 0; i < changes && !content.empty(); ++i) {
      const std::size_t at = pick(content.size());
      switch (pick(5)) {
        case 0:
          content[at] = static_cast<char>(content[at] ^ 1 << pick(8));
          break;
        case 1:
          content[at] = "\x00\x7f\x80\xff\"{[]},:0-9"[pick(14)];
          break;
        case 2:
          content.resize(at);
          break;
        case 3:
          content.insert(at, content.substr(at, pick(40)));
          break;
        default:
          content.erase(at, pick(20));
      }
    }
    return content;
  }

  void run(const std::string& whole, const std::string& name, const std::function<void()>& read) {
    write_plain(name, whole);
    read();
    int refused = 0;
    for (int round = 0; round < kRounds; ++round) {
      write_plain(name, mutate(whole));
      try {
        read();
      } catch (const Error&) {
        ++refused;
      }
    }
    // Mutations that no reader noticed would mean that the files are not looked at.
    EXPECT_GT(refused, kRounds / 20);
    EXPECT_LT(refused, kRounds);
  }

 private:
  int pick(int below) { return static_cast<int>(pick(static_cast<std::size_t>(below))); }
  std::size_t pick(std::size_t below) { return below == 0 ? 0 : random_() % below; }
  // Without fsync, which would take most of the time.
  void write_plain(const std::string& name, const std::string& content) {
    std::FILE* file = std::fopen(path(name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(std::fwrite(content.data(), 1, content.size(), file), content.size());
    std::fclose(file);
  }

  std::mt19937_64 random_{20260101};
};

TEST_F(Fuzz, IdxImages) {
  run(idx_images(6, 4, 5, 120), "x", [&] { read_idx_images(path("x")); });
}

TEST_F(Fuzz, IdxLabels) {
  write("images", idx_images(20, 1, 1, 20));
  run(idx_labels(20, 20), "labels", [&] { read_idx_set(path("images"), path("labels"), 10); });
}

TEST_F(Fuzz, CompressedIdx) {
  run(gzip(idx_images(60, 4, 5, 1200)), "x", [&] { read_idx_images(path("x")); });
}

TEST_F(Fuzz, Gzip) {
  run(gzip("a text") + gzip("and another member"), "x", [&] { read_maybe_gzip(path("x"), 100); });
}

TEST_F(Fuzz, Cifar10) {
  std::string records;
  for (int i = 0; i < 2; ++i) records += static_cast<char>(i) + std::string(3072, 'p');
  run(records, "x", [&] { read_cifar_files(CifarKind::kCifar10, {path("x")}); });
}

TEST_F(Fuzz, Cifar100) {
  const std::string records = std::string("\x13\x63", 2) + std::string(3072, 'p');
  run(records, "x", [&] { read_cifar_files(CifarKind::kCifar100, {path("x")}); });
}

TEST_F(Fuzz, Safetensors) {
  const std::string data(64, 'd');
  write_safetensors(path("good"),
                    std::vector<TensorView>{{"fc1.weight", "F32", {2, 3}, bytes_of(data).first(24)},
                                            {"fc1.bias", "F64", {2}, bytes_of(data).first(16)},
                                            {"mask", "BOOL", {5}, bytes_of(data).first(5)}},
                    {{"format", "pt"}});
  run(read_file(path("good")), "x", [&] {
    const SafetensorsFile file(path("x"));
    unsigned sum = 0;  // touches every byte that the reader hands out
    for (const auto& tensor : file.tensors()) {
      for (const auto byte : tensor.bytes) sum += std::to_integer<unsigned>(byte);
    }
    EXPECT_LE(sum, 255U * 200U);
  });
}

TEST_F(Fuzz, Manifest) {
  write("a", "content");
  write("b", "more");
  write_manifest(folder_.path(), std::vector<std::string>{"a", "b"});
  run(read_file(path(kManifestName)), kManifestName, [&] {
    read_manifest(folder_.path());
    verify_manifest(folder_.path());
  });
}

}  // namespace
}  // namespace lockstep::formats
