#include "lockstep/data/image_dataset.h"

#include <gmock/gmock.h>

#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/cifar.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST(ImageDataset, OpensFashionMnist) {
  const DatasetPair pair = open_dataset("fashion-mnist");
  EXPECT_EQ(pair.train->pixels.sizes(), at::IntArrayRef({60000, 1, 28, 28}));
  EXPECT_EQ(pair.eval->size(), 10000);
  EXPECT_EQ(pair.train->num_classes, 10);
  EXPECT_EQ(at::bincount(pair.train->labels, {}, 10).min().item<std::int64_t>(), 6000);
  // The constants are those of this very set.
  const auto scaled = pair.train->pixels.to(at::kDouble).div(255);
  EXPECT_NEAR(scaled.mean().item<double>(), pair.train->mean[0], 1e-4);
  EXPECT_NEAR(scaled.std(false).item<double>(), pair.train->deviation[0], 1e-4);
}

TEST(ImageDataset, FashionMnistShortCutTakesASplit) {
  EXPECT_EQ(fashion_mnist({}, Split::kEval)->size(), 10000);
  EXPECT_EQ(fashion_mnist(formats::fashion_mnist_folder(), Split::kEval)->name, "fashion-mnist");
}

TEST(ImageDataset, OpensGeneratedCifar10) {
  const TemporaryDirectory folder("dataset-test");
  formats::make_cifar10(folder.path(), 50, 1);
  const DatasetPair pair = open_dataset(text("cifar10:", folder.path().string()));
  EXPECT_EQ(pair.train->pixels.sizes(), at::IntArrayRef({50, 3, 32, 32}));
  EXPECT_EQ(pair.eval->size(), 10);
  EXPECT_EQ(pair.train->mean, (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(cifar10(folder.path(), Split::kEval)->size(), 10);
}

TEST(ImageDataset, SyntheticComesFromTheSeed) {
  const DatasetPair pair = open_dataset("synthetic:3x8x9:100", 7);
  EXPECT_EQ(pair.train->pixels.sizes(), at::IntArrayRef({100, 3, 8, 9}));
  EXPECT_EQ(pair.eval->size(), 1024);
  EXPECT_EQ(open_dataset("synthetic:1x2x2").train->size(), 4096);
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(pair.train->labels[i].item<std::int64_t>(), i % 10);
  const DatasetPair again = open_dataset("synthetic:3x8x9:100", 7);
  EXPECT_TRUE(at::equal(pair.train->pixels, again.train->pixels));
  EXPECT_TRUE(at::equal(pair.eval->pixels, again.eval->pixels));
  EXPECT_FALSE(at::equal(pair.train->pixels, open_dataset("synthetic:3x8x9:100", 8).train->pixels));
  EXPECT_FALSE(at::equal(pair.train->pixels, pair.eval->pixels.narrow(0, 0, 100)));
}

// Ridge regression on the magnitudes of the 2-D spectrum, which a shift of the grating does not change: what can be
// told apart that simply can be learned.
TEST(ImageDataset, SyntheticCanBeLearned) {
  const DatasetPair pair = open_dataset("synthetic:3x16x16:2000", 1);
  const auto features_of = [](const ImageDataset& dataset) {
    const auto spectrum = at::abs(at::fft_rfft2(dataset.pixels.to(at::kDouble).div(255).sub(0.5))).flatten(1);
    return at::cat({spectrum, at::ones({spectrum.size(0), 1}, at::kDouble)}, 1);
  };
  const auto features = features_of(*pair.train);
  const auto goal = at::one_hot(pair.train->labels, 10).to(at::kDouble);
  const auto gram = features.t().mm(features) + 10 * at::eye(features.size(1), at::kDouble);
  const auto weights = std::get<0>(at::linalg_solve_ex(gram, features.t().mm(goal)));
  const auto right = features_of(*pair.eval).mm(weights).argmax(1).eq(pair.eval->labels);
  EXPECT_GT(right.to(at::kDouble).mean().item<double>(), 0.9);
}

TEST(ImageDataset, RefusesUnknownSpecsAndMissingFiles) {
  EXPECT_THAT(error_of([] { open_dataset("imagenet"); }), HasSubstr("expected fashion-mnist[:DIR], mnist:DIR"));
  EXPECT_THAT(error_of([] { open_dataset("fashion-mnist:/none"); }),
              AllOf(HasSubstr("/none"), HasSubstr("dataset-fashion-mnist")));
  EXPECT_THAT(error_of([] { mnist("/none"); }), HasSubstr("/none: no such folder"));
}

TEST(ImageDataset, RefusesTensorsThatDoNotFit) {
  const auto pixels = at::zeros({4, 1, 2, 2}, at::kByte);
  const auto labels = at::arange(4, at::kLong);
  const auto error_for = [](ImageDataset dataset) { return error_of([&] { make_dataset(dataset); }); };
  EXPECT_THAT(error_for({"own", pixels.to(at::kFloat), labels, 4, {0.}, {1.}}), HasSubstr("uint8 tensor [N, C, H, W]"));
  EXPECT_THAT(error_for({"own", pixels, labels.to(at::kInt), 4, {0.}, {1.}}), HasSubstr("int64 tensor [N]"));
  EXPECT_THAT(error_for({"own", pixels, labels.narrow(0, 0, 3), 4, {0.}, {1.}}), HasSubstr("4 images but 3 labels"));
  EXPECT_THAT(error_for({"own", pixels, labels, 3, {0.}, {1.}}), HasSubstr("label 3 of sample 3 is out of range"));
  EXPECT_THAT(error_for({"own", pixels, labels, 4, {0., 0.}, {1.}}), HasSubstr("1 means and deviations"));
  EXPECT_THAT(error_for({"own", pixels, labels, 4, {0.}, {0.}}), HasSubstr("deviation of 0"));
  EXPECT_EQ(make_dataset({"own", pixels.expand({4, 1, 2, 2}), labels, 4, {0.}, {1.}})->size(), 4);
}

}  // namespace
}  // namespace lockstep::data
