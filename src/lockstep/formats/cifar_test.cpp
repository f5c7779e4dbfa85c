#include "lockstep/formats/cifar.h"

#include <gmock/gmock.h>

#include <array>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/formats/hash.h"
#include "lockstep/formats/test_files.h"

namespace lockstep::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string record(std::initializer_list<int> labels, char fill) {
  std::string out;
  for (const int label : labels) out.push_back(static_cast<char>(label));
  return out + std::string(3072, fill);
}

class Cifar : public FileTest {};

TEST_F(Cifar, ReadsFilesOneAfterAnother) {
  const auto first = write("a.bin", record({3}, 'x') + record({9}, 'y'));
  const auto second = write("b.bin", record({0}, 'z'));
  const CifarImages images = read_cifar_files(CifarKind::kCifar10, {first, second});
  EXPECT_EQ(images.count, 3);
  EXPECT_EQ(images.labels, (std::vector<std::uint8_t>{3, 9, 0}));
  EXPECT_EQ(images.pixels[3071], 'x');
  EXPECT_EQ(images.pixels[3072], 'y');
  EXPECT_EQ(images.pixels[3 * 3072 - 1], 'z');
}

TEST_F(Cifar, ReadsCoarseAndFineLabels) {
  const auto file = write("train.bin", record({19, 99}, 'x') + record({0, 7}, 'y'));
  const CifarImages images = read_cifar_files(CifarKind::kCifar100, {file});
  EXPECT_EQ(images.labels, (std::vector<std::uint8_t>{99, 7}));
  EXPECT_EQ(images.coarse_labels, (std::vector<std::uint8_t>{19, 0}));
  EXPECT_EQ(images.pixels[3072], 'y');
}

TEST_F(Cifar, NamesFileRecordAndByteOfABadLabel) {
  const auto ten = write("ten.bin", record({1}, 'x') + record({10}, 'y'));
  EXPECT_THAT(error_of([&] { read_cifar_files(CifarKind::kCifar10, {ten}); }),
              AllOf(HasSubstr(ten.string()), HasSubstr("label 10 of record 1 (byte 3073)"), HasSubstr("0 to 9")));
  const auto coarse = write("coarse.bin", record({20, 0}, 'x'));
  EXPECT_THAT(error_of([&] { read_cifar_files(CifarKind::kCifar100, {coarse}); }),
              HasSubstr("coarse label 20 of record 0 (byte 0) is out of range, expected 0 to 19"));
  const auto fine = write("fine.bin", record({0, 100}, 'x'));
  EXPECT_THAT(error_of([&] { read_cifar_files(CifarKind::kCifar100, {fine}); }),
              HasSubstr("label 100 of record 0 (byte 1) is out of range, expected 0 to 99"));
}

TEST_F(Cifar, RefusesAPartOfARecord) {
  const auto cut = write("cut.bin", (record({1}, 'x') + record({2}, 'y')).substr(0, 3073 + 100));
  EXPECT_THAT(
      error_of([&] { read_cifar_files(CifarKind::kCifar10, {cut}); }),
      AllOf(HasSubstr("3173 bytes"), HasSubstr("records of 3073"), HasSubstr("100 bytes remain after record 1")));
  const auto empty = write("empty.bin", "");
  EXPECT_THAT(error_of([&] { read_cifar_files(CifarKind::kCifar10, {empty}); }), HasSubstr("is empty"));
}

TEST_F(Cifar, ListsMissingFilesAndFindsTheArchivesFolder) {
  EXPECT_THAT(error_of([&] { find_cifar_files(CifarKind::kCifar10, path("none")); }), HasSubstr("no such folder"));
  write("data_batch_1.bin", record({1}, 'x'));
  EXPECT_THAT(
      error_of([&] { find_cifar_files(CifarKind::kCifar10, folder_.path()); }),
      HasSubstr("missing: data_batch_2.bin, data_batch_3.bin, data_batch_4.bin, data_batch_5.bin, test_batch.bin"));
  std::filesystem::create_directory(path("cifar-100-binary"));
  for (const char* name : {"train.bin", "test.bin"}) write(text("cifar-100-binary/", name), record({1, 1}, 'x'));
  EXPECT_EQ(find_cifar_files(CifarKind::kCifar100, folder_.path()).train.front(), path("cifar-100-binary/train.bin"));
}

TEST_F(Cifar, GeneratedImagesAreReproducibleAndBalanced) {
  const GeneratedCifar made = make_cifar10(path("a"), 103, 7);
  const GeneratedCifar again = make_cifar10(path("b"), 103, 7);
  const GeneratedCifar other = make_cifar10(path("c"), 103, 8);
  ASSERT_EQ(made.files.size(), 6U);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(made.files[i].sha256, again.files[i].sha256);
    EXPECT_NE(made.files[i].sha256, other.files[i].sha256);
    EXPECT_EQ(digest_file(path("a") / made.files[i].name).sha256, made.files[i].sha256);
    total += made.files[i].images;
  }
  EXPECT_EQ(total, 103 + 20);
  // Fixed for good: the same seed gives the same bytes on every machine and in every version.
  EXPECT_EQ(made.files[0].sha256, "482d0cc3285a5efb9c792ff31b0ec7ca8586ee1cb2483b56ab7663374d087849");

  const CifarPaths paths = find_cifar_files(CifarKind::kCifar10, path("a"));
  const CifarImages train = read_cifar_files(CifarKind::kCifar10, paths.train);
  EXPECT_EQ(train.count, 103);
  EXPECT_EQ(read_cifar_files(CifarKind::kCifar10, paths.test).count, 20);
  std::array<int, 10> per_class{};
  for (const auto label : train.labels) ++per_class[label];
  for (const int count : per_class) EXPECT_NEAR(count, 10.3, 0.8);
  EXPECT_THAT(read_file(path("a/GENERATED.txt")), HasSubstr("not CIFAR-10"));
  EXPECT_THAT(read_file(path("a/batches.meta.txt")), ::testing::StartsWith("airplane\n"));
}

// Nearest class mean over the autocorrelation of an image, which does not depend on the random phase: a plain linear
// look at the pictures must tell the classes apart, or nothing could be learned from them.
TEST_F(Cifar, GeneratedImagesCanBeToldApart) {
  make_cifar10(path("a"), 1000, 1);
  const CifarPaths paths = find_cifar_files(CifarKind::kCifar10, path("a"));
  constexpr int kReach = 6;
  constexpr int kFeatures = (2 * kReach + 1) * (kReach + 1);
  using Feature = std::array<double, kFeatures>;
  const auto feature_of = [](const std::uint8_t* pixels) {
    Feature feature{};
    double mean = 0;
    for (int i = 0; i < 1024; ++i) mean += pixels[i] / 1024.0;
    int f = 0;
    for (int dy = 0; dy <= kReach; ++dy) {
      for (int dx = -kReach; dx <= kReach; ++dx, ++f) {
        for (int y = 0; y < 32 - dy; ++y) {
          for (int x = kReach; x < 32 - kReach; ++x) {
            feature[static_cast<std::size_t>(f)] +=
                (pixels[32 * y + x] - mean) * (pixels[32 * (y + dy) + x + dx] - mean) / (20 * (32 - dy));
          }
        }
      }
    }
    return feature;
  };
  const CifarImages train = read_cifar_files(CifarKind::kCifar10, paths.train);
  std::array<Feature, 10> centres{};
  for (std::int64_t i = 0; i < train.count; ++i) {
    const Feature feature = feature_of(&train.pixels[i * 3072]);
    for (std::size_t f = 0; f < kFeatures; ++f)
      centres[train.labels[static_cast<std::size_t>(i)]][f] += feature[f] / 100;
  }
  const CifarImages test = read_cifar_files(CifarKind::kCifar10, paths.test);
  int right = 0;
  for (std::int64_t i = 0; i < test.count; ++i) {
    const Feature feature = feature_of(&test.pixels[i * 3072]);
    std::size_t best = 0;
    double best_distance = INFINITY;
    for (std::size_t c = 0; c < 10; ++c) {
      double distance = 0;
      for (std::size_t f = 0; f < kFeatures; ++f) distance += std::pow(feature[f] - centres[c][f], 2);
      if (distance < best_distance) best = c, best_distance = distance;
    }
    right += best == test.labels[static_cast<std::size_t>(i)];
  }
  EXPECT_GE(right, test.count * 8 / 10);
}

TEST_F(Cifar, MakeRefusesBadCountsAndForeignBatches) {
  EXPECT_THAT(error_of([&] { make_cifar10(path("a"), 4, 0); }),
              HasSubstr("cannot make 4 images, expected 5 to 1000000"));
  EXPECT_FALSE(std::filesystem::exists(path("a")));
  write("data_batch_1.bin", record({1}, 'x'));
  EXPECT_THAT(error_of([&] { make_cifar10(folder_.path(), 10, 0); }), HasSubstr("was not generated"));
}

}  // namespace
}  // namespace lockstep::formats
