// How ranks share a data set, through the command: evaluation sets and training sets of awkward sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/train_command.h"
#include "lockstep/formats/test_files.h"

namespace lockstep::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Sharing : public ::testing::Test {
 protected:
  fs::path path(const std::string& name) const { return folder_.path() / name; }

  // A data set of small pictures in MNIST's files.
  std::string mnist(const std::string& name, std::uint32_t num_train, std::uint32_t num_eval) const {
    const auto write = [&](const std::string& stem, std::uint32_t count) {
      write_file_atomic(path(name) / (stem + "-images-idx3-ubyte"), formats::idx_images(count, 9, 9, 81 * count));
      write_file_atomic(path(name) / (stem + "-labels-idx1-ubyte"), formats::idx_labels(count, count));
    };
    fs::create_directories(path(name));
    write("train", num_train);
    write("t10k", num_eval);
    return "mnist:" + path(name).string();
  }

  Finished train(const std::string& name, const Words& words) const {
    return run(Words{"train", "--model", "mlp", "--device", "cpu", "--json", "--run-dir", path(name).string()} + words);
  }

 private:
  TemporaryDirectory folder_{"lockstep-sharing-test"};
};

TEST_F(Sharing, BR055_CountsAndLossAreThoseOfTheDataSetForEveryWorldSize) {
  const auto model = path("model.safetensors").string();
  const auto made =
      train("model", {"--data", mnist("made", 640, 10), "--max-steps", "20", "--lr", "0.1", "--dump-final", model});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (const std::uint32_t size : {10U, 10000U, 10001U}) {
    const std::string data = mnist(text("data", size), 64, size);
    nlohmann::json alone;
    for (const std::string world : {"1", "2", "3", "4", "8"}) {
      SCOPED_TRACE(text(size, " samples, ", world, " ranks"));
      const auto finished = train(text("run", size, "-", world), {"--data", data, "--nproc", world, "--max-steps", "1",
                                                                  "--lr", "0", "--init-from", model});
      ASSERT_EQ(finished.exit_code, 0) << finished.err;
      const auto epoch = finished.document()["epochs"].back();
      if (world == "1") alone = epoch;
      EXPECT_EQ(epoch["eval_total"], size);
      EXPECT_EQ(epoch["eval_correct"], alone["eval_correct"]);
      EXPECT_EQ(epoch["eval_accuracy"], alone["eval_accuracy"]);
      EXPECT_DOUBLE_EQ(epoch["eval_accuracy"].get<double>(), epoch["eval_correct"].get<double>() / size);
      EXPECT_EQ(epoch["eval_loss"], alone["eval_loss"]) << "not the same bits";
    }
    EXPECT_GT(alone["eval_correct"], 0);
    EXPECT_LT(alone["eval_correct"], size);
  }
}

TEST_F(Sharing, BR049_FewerSamplesThanRanksArePaddedOrRefused) {
  const std::string data = mnist("few", 3, 5);
  const auto padded = train("padded", {"--data", data, "--nproc", "4", "--epochs", "2", "--batch-size", "2"});
  ASSERT_EQ(padded.exit_code, 0) << padded.err;
  EXPECT_EQ(padded.document()["steps"], 2);
  EXPECT_EQ(padded.document()["epochs"].back()["eval_total"], 5);
  for (const std::string nproc : {"4", "7"}) {
    const auto dropped = train("dropped", {"--data", data, "--nproc", nproc, "--drop-last"});
    EXPECT_EQ(dropped.exit_code, 2) << dropped.err;
    EXPECT_THAT(dropped.err, HasSubstr(text("drop_last leaves nothing of 3 samples on ", nproc, " ranks")));
    EXPECT_FALSE(fs::exists(path("dropped")));
  }
}

}  // namespace
}  // namespace lockstep::e2e
