#include "lockstep/formats/image_set.h"

#include <gmock/gmock.h>

#include "lockstep/formats/test_files.h"

namespace lockstep::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ImageSets : public FileTest {
 protected:
  void write_mnist(const std::string& prefix, char separator, bool compressed) {
    const auto put = [&](const std::string& name, const std::string& content) {
      write(prefix + name + (compressed ? ".gz" : ""), compressed ? gzip(content) : content);
    };
    const std::string images = std::string("-images") + separator + "idx3-ubyte";
    const std::string labels = std::string("-labels") + separator + "idx1-ubyte";
    put("train" + images, idx_images(6, 4, 5, 120));
    put("train" + labels, idx_labels(6, 6));
    put("t10k" + images, idx_images(2, 4, 5, 40));
    put("t10k" + labels, idx_labels(2, 2));
  }
};

TEST_F(ImageSets, ParsesEveryForm) {
  EXPECT_EQ(parse_image_set_spec("fashion-mnist").folder, fashion_mnist_folder());
  EXPECT_EQ(parse_image_set_spec("fashion-mnist:a:b").folder, "a:b");
  EXPECT_EQ(parse_image_set_spec("cifar100:x").kind, ImageSetKind::kCifar100);
  const ImageSetSpec synthetic = parse_image_set_spec("synthetic:3x8x9:100");
  EXPECT_EQ(synthetic.shape.size(), 3 * 8 * 9);
  EXPECT_EQ(synthetic.num_train, 100);
  EXPECT_EQ(synthetic.num_eval, 1024);
  EXPECT_EQ(parse_image_set_spec("synthetic:1x2x3").num_train, 4096);
}

TEST_F(ImageSets, RefusesOtherFormsAndListsThese) {
  for (const char* spec : {"", "mist", "mnist", "mnist:", "cifar10", "synthetic", "synthetic:3x8", "synthetic:3x8x0",
                           "synthetic:3x8x8:", "synthetic:3x8x8:1:2", "synthetic:99999x99999x99999:99999"}) {
    EXPECT_THAT(error_of([&] { parse_image_set_spec(spec); }),
                AllOf(HasSubstr(std::string("data set \"") + spec), HasSubstr("synthetic:CxHxW[:N]")));
  }
}

TEST_F(ImageSets, FindsMnistUnderItsUsualNames) {
  std::filesystem::create_directory(path("raw"));
  for (const std::string folder : {"", "raw/"}) {
    for (const char separator : {'-', '.'}) {
      for (const bool compressed : {false, true}) {
        write_mnist(folder, separator, compressed);
        const ImageSetSpec spec = parse_image_set_spec("mnist:" + folder_.path().string());
        const ImageSet train = read_image_set(spec, Split::kTrain);
        EXPECT_EQ(train.count, 6);
        EXPECT_EQ(train.shape.height, 4);
        EXPECT_EQ(train.shape.width, 5);
        EXPECT_EQ(read_image_set(spec, Split::kEval).labels, (std::vector<std::uint8_t>{0, 1}));
        for (const auto& entry : std::filesystem::directory_iterator(path(folder))) {
          if (entry.is_regular_file()) std::filesystem::remove(entry.path());
        }
      }
    }
  }
}

TEST_F(ImageSets, SaysWhatIsMissingAndHowToGetIt) {
  EXPECT_THAT(error_of([&] { read_image_set(parse_image_set_spec("fashion-mnist:/none"), Split::kTrain); }),
              AllOf(HasSubstr("/none: no such folder"), HasSubstr("dataset-fashion-mnist")));
  const ImageSetSpec here = parse_image_set_spec("mnist:" + folder_.path().string());
  EXPECT_THAT(error_of([&] { read_image_set(here, Split::kEval); }),
              HasSubstr("the IDX files are not all there, missing: train-images-idx3-ubyte, train-labels-idx1-ubyte, "
                        "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"));
}

}  // namespace
}  // namespace lockstep::formats
