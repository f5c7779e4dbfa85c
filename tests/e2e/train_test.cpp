// `lockstep train` and `compare` on real Fashion-MNIST, as a user runs them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "e2e/train_command.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/safetensors.h"

namespace lockstep::e2e {
namespace {

using ::testing::HasSubstr;

class Train : public ::testing::Test {
 protected:
  fs::path path(const std::string& name) const { return folder_.path() / name; }

  // A run of its own folder that must succeed; on Fashion-MNIST unless the words say otherwise.
  nlohmann::json train(const std::string& name, Words words) {
    if (std::find(words.begin(), words.end(), "--data") == words.end())
      words = words + Words{"--data", "fashion-mnist"};
    const auto finished = run(Words{"train", "--device", "cpu", "--json", "--run-dir", path(name).string(),
                                    "--dump-final", path(name + ".safetensors").string()} +
                              words);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return finished.exit_code == 0 ? finished.document() : nlohmann::json();
  }

  double largest_difference(const std::string& left, const std::string& right) {
    const formats::SafetensorsFile first(path(left + ".safetensors")), second(path(right + ".safetensors"));
    EXPECT_EQ(first.tensors().size(), second.tensors().size());
    double largest = 0;
    for (const auto& tensor : first.tensors()) {
      const auto* other = second.find(tensor.name);
      if (other == nullptr || other->bytes.size() != tensor.bytes.size()) return INFINITY;
      if (tensor.dtype != "F64") {
        if (tensor.dtype != "I64" || !std::ranges::equal(tensor.bytes, other->bytes)) return INFINITY;
        continue;
      }
      for (std::size_t at = 0; at < tensor.bytes.size(); at += sizeof(double)) {
        double a = 0, b = 0;
        std::memcpy(&a, tensor.bytes.data() + at, sizeof(a));
        std::memcpy(&b, other->bytes.data() + at, sizeof(b));
        largest = std::max(largest, std::abs(a - b));
      }
    }
    return largest;
  }

 private:
  TemporaryDirectory folder_{"lockstep-train-test"};
};

struct Setting {
  std::string name;
  Words words;
};

class Equality : public Train, public ::testing::WithParamInterface<Setting> {};

// The promise: any strategy and world size equals one process on the concatenated batch.
TEST_P(Equality, StrategiesEqualSingleInDoublePrecisionOverSixtySteps) {
  const Words common = GetParam().words + Words{"--precision", "fp64", "--max-steps", "60", "--eval-every", "0"};
  train("single", common + Words{"--batch-size", "96"});
  struct Spread {
    std::string strategy;
    int nproc;
    int accumulate;
  };
  for (const auto& [strategy, nproc, accumulate] :
       {Spread{"ddp", 2, 1}, Spread{"ddp", 3, 1}, Spread{"ddp", 2, 2}, Spread{"dp", 2, 1}, Spread{"dp", 2, 2},
        Spread{"zero1", 2, 1}, Spread{"zero1", 2, 2}, Spread{"zero2", 3, 1}, Spread{"zero2", 2, 2}}) {
    const std::string name = text(strategy, nproc, "_accumulate", accumulate);
    const auto document = train(name, common + Words{"--strategy", strategy, "--nproc", text(nproc), "--batch-size",
                                                     text(96 / nproc / accumulate), "--accumulate", text(accumulate)});
    EXPECT_LE(largest_difference("single", name), 1e-10) << name;
    // The command compares the ranks' weights at the end: a document with a digest means that they agree.
    EXPECT_EQ(document["final_weights_sha256"].get<std::string>().size(), 64U) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Equality,
    ::testing::Values(
        Setting{"mlp_momentum", {"--model", "mlp", "--lr", "0.05", "--momentum", "0.9"}},
        Setting{"mlp_adamw", {"--model", "mlp", "--optimizer", "adamw", "--lr", "0.001", "--weight-decay", "0.1"}},
        Setting{"cnn_clipped", {"--model", "cnn", "--lr", "0.1", "--clip-norm", "0.5", "--warmup-epochs", "0.05"}}),
    [](const auto& setting) { return setting.param.name; });

TEST_F(Train, SameSeedGivesTheSameBits) {
  const Words words{"--model", "mlp", "--nproc", "2", "--max-steps", "40", "--eval-every", "0"};
  const auto first = train("first", words);
  const auto second = train("second", words);
  EXPECT_EQ(first["final_weights_sha256"], second["final_weights_sha256"]);
  EXPECT_NE(first["final_weights_sha256"], train("other", words + Words{"--seed", "1"})["final_weights_sha256"]);
}

TEST_F(Train, ResumedEqualsNeverInterruptedBitForBit) {
  const Words words{"--model", "mlp", "--nproc", "2", "--optimizer", "adam", "--lr", "0.001", "--eval-every", "0"};
  const auto whole = train("whole", words + Words{"--max-steps", "60"});
  train("parts", words + Words{"--max-steps", "35", "--save-steps", "25"});
  EXPECT_TRUE(fs::exists(path("parts") / "checkpoints" / "step_25" / "MANIFEST.json"));
  const auto resumed = train(
      "parts", words + Words{"--max-steps", "60", "--resume", (path("parts") / "checkpoints" / "step_25").string()});
  EXPECT_EQ(resumed["resumed_from_step"], 25);
  EXPECT_EQ(resumed["final_weights_sha256"], whole["final_weights_sha256"]);
}

// Optimizer state is saved whole, by name: the sharding it came from leaves no trace.
TEST_F(Train, BR035_ARunGoesOnUnderAnotherStrategyAndWorldSize) {
  const Words words{"--model",     "mlp",  "--optimizer", "adamw", "--lr",         "0.001",
                    "--precision", "fp64", "--clip-norm", "1",     "--eval-every", "0"};
  train("whole", words + Words{"--batch-size", "96", "--max-steps", "40"});
  train("parts", words + Words{"--strategy", "zero2", "--nproc", "2", "--batch-size", "48", "--max-steps", "20",
                               "--save-steps", "20"});
  for (const std::string next : {"zero1", "ddp", "single"}) {
    const int nproc = next == "single" ? 1 : 3;
    train(next, words + Words{"--strategy", next, "--nproc", text(nproc), "--batch-size", text(96 / nproc),
                              "--max-steps", "40", "--resume", (path("parts") / "checkpoints" / "step_20").string()});
    EXPECT_LE(largest_difference("whole", next), 1e-10) << next;
  }
}

TEST_F(Train, ShardedRunsResumeBitForBit) {
  for (const std::string strategy : {"zero1", "zero2"}) {
    const Words words{"--model", "mlp",  "--nproc", "2",           "--strategy", strategy,       "--optimizer",
                      "adam",    "--lr", "0.001",   "--clip-norm", "1",          "--eval-every", "0"};
    const auto whole = train(strategy + "_whole", words + Words{"--max-steps", "30"});
    train(strategy + "_parts", words + Words{"--max-steps", "15", "--save-steps", "15"});
    const auto resumed = train(strategy + "_parts", words + Words{"--max-steps", "30", "--resume", "auto"});
    EXPECT_EQ(resumed["final_weights_sha256"], whole["final_weights_sha256"]) << strategy;
  }
}

TEST_F(Train, HalfPrecisionLearnsAndKeepsItsLossScale) {
  const Words words{"--model", "mlp", "--nproc", "2", "--lr", "0.1", "--max-steps", "300"};
  const auto fp32 = train("fp32", words);
  const double expected = fp32["epochs"].back()["eval_accuracy"];
  for (const std::string precision : {"bf16", "fp16"}) {
    const auto document = train(precision, words + Words{"--precision", precision});
    EXPECT_NEAR(document["epochs"].back()["eval_accuracy"], expected, 0.02) << precision;
  }
  const Words halved{"--model", "mlp", "--lr", "0.1", "--precision", "fp16", "--eval-every", "0"};
  const auto whole = train("whole", halved + Words{"--max-steps", "40"});
  train("parts", halved + Words{"--max-steps", "20", "--save-steps", "20"});
  const auto state = nlohmann::json::parse(read_file(path("parts") / "checkpoints" / "step_20" / "state.json"));
  EXPECT_GT(state["loss_scale"]["scale"].get<double>(), 0);
  const auto resumed = train("parts", halved + Words{"--max-steps", "40", "--resume", "auto"});
  EXPECT_EQ(resumed["final_weights_sha256"], whole["final_weights_sha256"]);
}

// With statistics over all ranks two ranks are one process on the whole batch; without, each normalises its own part.
TEST_F(Train, SynchronisedBatchNormMakesAResnetIndependentOfTheWorldSize) {
  const Words words{"--model",     "resnet18", "--data",       "synthetic:3x8x8:32",
                    "--precision", "fp64",     "--lr",         "0.01",
                    "--max-steps", "3",        "--eval-every", "0"};
  train("single", words + Words{"--batch-size", "8"});
  train("synced", words + Words{"--strategy", "ddp", "--nproc", "2", "--batch-size", "4", "--sync-bn"});
  train("unsynced", words + Words{"--strategy", "ddp", "--nproc", "2", "--batch-size", "4"});
  EXPECT_LE(largest_difference("single", "synced"), 1e-9);
  EXPECT_GT(largest_difference("single", "unsynced"), 1e-6);
}

TEST_F(Train, AFinishedRunResumedDoesNothingAndStillDumps) {
  const Words words{"--model", "mlp", "--max-steps", "10", "--save-steps", "10", "--save-every", "1"};
  const auto done = train("run", words);
  fs::remove(path("run.safetensors"));
  const auto again = train("run", words + Words{"--resume", "auto"});
  EXPECT_EQ(again["final_weights_sha256"], done["final_weights_sha256"]);
  EXPECT_TRUE(fs::exists(path("run.safetensors")));
}

TEST_F(Train, DamagedCheckpointIsNamedAndTheOlderOneUsed) {
  const Words words{"--model", "mlp", "--save-steps", "10"};
  train("run", words + Words{"--max-steps", "30"});
  const auto newest = path("run") / "checkpoints" / "step_30" / "model.safetensors";
  ASSERT_TRUE(fs::exists(newest));
  std::string bytes = read_file(newest);
  bytes[bytes.size() / 2] ^= 1;
  write_file_atomic(newest, bytes);
  const auto finished = run({"train", "--data", "fashion-mnist", "--device", "cpu", "--json", "--run-dir",
                             path("run").string(), "--model", "mlp", "--max-steps", "40", "--resume", "auto"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.document()["resumed_from_step"], 20);
  EXPECT_NE(finished.err.find("step_30/model.safetensors"), std::string::npos) << finished.err;
}

// The run ends at --epochs also when the global batch changes at a resume.
TEST_F(Train, AResumeWithAnotherGlobalBatchEndsAtThePlannedEpoch) {
  const Words words{"--model", "mlp", "--data", "synthetic:1x9x9:128", "--save-every", "1", "--eval-every", "0"};
  const auto resumed = [&](const std::string& name, const Words& first, const Words& then) {
    train(name, words + Words{"--epochs", "2"} + first);
    const auto document = train(name, words + Words{"--epochs", "4", "--resume", "auto"} + then);
    std::vector<int> epochs;
    for (const auto& epoch : document["epochs"]) epochs.push_back(epoch["epoch"]);
    return epochs;
  };
  const std::vector<int> remaining{3, 4};
  EXPECT_EQ(resumed("more_ranks", {"--batch-size", "8"}, {"--batch-size", "8", "--nproc", "2"}), remaining);
  EXPECT_EQ(
      resumed("fewer_ranks", {"--batch-size", "8", "--nproc", "2"}, {"--batch-size", "8", "--strategy", "single"}),
      remaining);
  EXPECT_EQ(resumed("smaller_batch", {"--batch-size", "8"}, {"--batch-size", "4"}), remaining);
}

TEST_F(Train, ResumeRefusesOtherDataAndFoldersOfDamagedCheckpoints) {
  const Words words{"train",        "--model", "mlp",       "--device",          "cpu",
                    "--save-every", "1",       "--run-dir", path("run").string()};
  ASSERT_EQ(run(words + Words{"--data", "synthetic:1x9x9:128", "--epochs", "1"}).exit_code, 0);
  const auto other = run(words + Words{"--data", "synthetic:1x9x9:64", "--epochs", "2", "--resume", "auto"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("128 samples"), std::string::npos) << other.err;
  EXPECT_EQ(other.err.find("failed first"), std::string::npos) << other.err;
  const auto model = path("run") / "checkpoints" / "step_4" / "model.safetensors";
  ASSERT_TRUE(fs::exists(model));
  fs::resize_file(model, 10);
  const auto damaged = run(words + Words{"--data", "synthetic:1x9x9:128", "--epochs", "2", "--resume", "auto"});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_NE(damaged.err.find("all 1 checkpoints are damaged"), std::string::npos) << damaged.err;
}

TEST_F(Train, ADivergingRunKeepsItsLastGoodCheckpoint) {
  const auto finished = run({"train", "--model", "mlp", "--device", "cpu", "--data", "synthetic:1x28x28:2000", "--lr",
                             "1e30", "--save-steps", "1", "--keep", "1", "--run-dir", path("run").string(), "--json"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_TRUE(fs::exists(path("run") / "checkpoints" / "step_1" / "MANIFEST.json"));
  EXPECT_FALSE(fs::exists(path("run") / "checkpoints" / "step_10"));
}

TEST_F(Train, ADeviceIsNotReplacedByTheFinalWeights) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const auto finished = run({"train", "--model", "mlp", "--device", "cpu", "--data", "synthetic:1x9x9:64", "--epochs",
                             "1", "--dump-final", path("pipe").string(), "--run-dir", path("run").string()});
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
}

TEST_F(Train, OutputThatCannotBeWrittenIsAnError) {
  Command full({"-c", text(Command::binary(), " doctor --json > /dev/full")}, Command::Terminal::kNone, "/bin/sh");
  EXPECT_EQ(full.wait(), 1);
  EXPECT_NE(full.err().find("standard output could not be written"), std::string::npos) << full.err();
}

// BR-055: the score does not depend on the number of ranks.
TEST_F(Train, BR055_EvaluationIsExactForEveryWorldSize) {
  train("run", {"--model", "mlp", "--max-steps", "20", "--save-every", "0"});
  const Words words{"--model", "mlp",  "--epochs", "1",           "--max-steps",
                    "1",       "--lr", "0",        "--init-from", path("run.safetensors").string()};
  const auto accuracy = [](const nlohmann::json& document) { return document["epochs"].back()["eval_accuracy"]; };
  const auto alone = train("alone", words);
  for (const std::string nproc : {"2", "3", "7"}) {
    EXPECT_EQ(accuracy(train("by" + nproc, words + Words{"--nproc", nproc})), accuracy(alone)) << nproc;
  }
}

TEST_F(Train, StopsOnSigtermWithACheckpointToGoOnFrom) {
  Command command({"train", "--data", "fashion-mnist", "--device", "cpu", "--json", "--model", "mlp", "--nproc", "2",
                   "--epochs", "200", "--eval-every", "0", "--run-dir", path("run").string()});
  ASSERT_TRUE(Command::eventually(
      [&] {
        return fs::exists(path("run") / "events.jsonl") &&
               read_file(path("run") / "events.jsonl").find("\"epoch\"") != std::string::npos;
      },
      30000));
  ::kill(command.pid(), SIGTERM);
  EXPECT_EQ(command.wait(), 143) << command.err();
  EXPECT_TRUE(command.living().empty());
  const auto document = nlohmann::json::parse(command.out());
  EXPECT_EQ(document["exit"], "stopped");
  const auto resumed = run(
      {"train",    "--data", "fashion-mnist", "--device", "cpu",          "--json", "--model",   "mlp",
       "--nproc",  "2",      "--epochs",      "200",      "--eval-every", "0",      "--run-dir", path("run").string(),
       "--resume", "auto",   "--stop-after",  "1s"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_GT(resumed.document()["resumed_from_step"].get<int>(), 0);
  EXPECT_EQ(resumed.document()["exit"], "stopped");
}

TEST_F(Train, DivergenceStopsWithExitOneAndNamesTheStep) {
  const auto finished = run({"train", "--data", "fashion-mnist", "--device", "cpu", "--json", "--model", "mlp", "--lr",
                             "1e30", "--run-dir", path("run").string()});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_EQ(finished.document()["exit"], "failed");
  EXPECT_NE(finished.err.find("training diverged"), std::string::npos) << finished.err;
}

// Over the ends of several epochs: their mean leaves out the bad losses, and must not pass for a good one.
TEST_F(Train, ADivergedRunLeavesTheLastGoodCheckpointAlone) {
  const auto train = [&](const std::string& lr, const std::string& max_steps) {
    return run(Words{"train", "--data", "synthetic:1x28x28:160", "--device", "cpu", "--nproc", "2", "--epochs", "100"} +
               Words{"--eval-every", "0", "--save-steps", "2", "--keep", "1", "--lr", lr, "--max-steps", max_steps} +
               Words{"--run-dir", path("run").string(), "--resume", "auto"});
  };
  EXPECT_EQ(train("0.01", "4").exit_code, 0);
  const auto diverged = train("3e38", "60");
  EXPECT_EQ(diverged.exit_code, 1);
  EXPECT_THAT(diverged.err, HasSubstr("training diverged: the loss is nan since step"));
  const auto again = train("0.01", "9");
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

TEST_F(Train, ARunThatEndsWithSpoiltWeightsIsNoSuccessThoughTooShortToGiveUp) {
  for (const char* nproc : {"1", "2"}) {
    const auto finished = run({"train", "--data", "synthetic:1x28x28:960", "--device", "cpu", "--nproc", nproc,
                               "--max-steps", "4", "--eval-every", "0", "--lr", "3e38", "--overwrite", "--run-dir",
                               path("run").string(), "--dump-final", path("final.safetensors").string()});
    EXPECT_EQ(finished.exit_code, 1);
    EXPECT_THAT(finished.err, HasSubstr("the final weights are not finite, spoilt at step"));
    EXPECT_FALSE(fs::exists(path("final.safetensors")));
  }
}

TEST_F(Train, BadDataIsRefusedWithItsPlaceAndNothingIsLeftBehind) {
  const auto folder = path("data");
  fs::create_directories(folder);
  for (const char* name : {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
                           "t10k-labels-idx1-ubyte.gz"}) {
    fs::copy(fs::path("/usr/share/datasets/fashion-mnist") / name, folder / name);
  }
  const auto expect_refused = [&](const Words& words, const std::string& place) {
    const auto finished =
        run(Words{"train", "--model", "mlp", "--device", "cpu", "--run-dir", path("refused").string()} + words);
    EXPECT_EQ(finished.exit_code, 2) << finished.err;
    EXPECT_NE(finished.err.find(place), std::string::npos) << finished.err;
    EXPECT_EQ(finished.err.find("error: "), finished.err.rfind("error: ")) << finished.err;
    EXPECT_EQ(finished.err.find("failed first"), std::string::npos) << finished.err;
    EXPECT_FALSE(fs::exists(path("refused")));
  };
  fs::resize_file(folder / "train-images-idx3-ubyte.gz", 1000000);
  expect_refused({"--data", "fashion-mnist:" + folder.string()}, "train-images-idx3-ubyte.gz");
  expect_refused({"--data", "fashion-mnist:" + folder.string(), "--nproc", "2"}, "train-images-idx3-ubyte.gz");
  fs::copy_file(folder / "train-labels-idx1-ubyte.gz", folder / "train-images-idx3-ubyte.gz",
                fs::copy_options::overwrite_existing);
  expect_refused({"--data", "fashion-mnist:" + folder.string()}, "2049");
  expect_refused({"--data", "fashion-mnist:" + path("nowhere").string()}, "nowhere");
  expect_refused({"--data", "fashion-mnist", "--batch-size", "0"}, "--batch-size");
  expect_refused({"--data", "cinema"}, "cinema");
}

TEST_F(Train, ARunIsKeptWhenTheOneThatReplacesItIsRefusedByTheRanks) {
  train("run", {"--model", "mlp", "--data", "synthetic:1x9x9:64", "--epochs", "1"});
  const std::string events = read_file(path("run") / "events.jsonl");
  const auto expect_refused = [&](const Words& words, const std::string& message) {
    const auto finished = run(Words{"train", "--model", "mlp", "--device", "cpu", "--nproc", "2", "--run-dir",
                                    path("run").string(), "--overwrite"} +
                              words);
    EXPECT_EQ(finished.exit_code, 2) << finished.err;
    EXPECT_NE(finished.err.find(message), std::string::npos) << finished.err;
    EXPECT_EQ(finished.err.find("error: "), finished.err.rfind("error: ")) << finished.err;
    EXPECT_EQ(finished.err.find("failed first"), std::string::npos) << finished.err;
    EXPECT_EQ(read_file(path("run") / "events.jsonl"), events);
  };
  expect_refused({"--data", "synthetic:1x9x9:64", "--batch-size", "64", "--drop-last"},
                 "use a smaller batch_size (--batch-size), or no drop_last (--drop-last)");
  expect_refused({"--data", "synthetic:1x8x8:64", "--init-from", path("run.safetensors").string()},
                 "--init-from " + path("run.safetensors").string() + ": tensor ");
}

TEST_F(Train, CompareShowsEveryStrategy) {
  const auto finished = run({"compare",
                             "--model",
                             "mlp",
                             "--data",
                             "fashion-mnist",
                             "--device",
                             "cpu",
                             "--strategies",
                             "single,dp,ddp",
                             "--nproc",
                             "2",
                             "--epochs",
                             "1",
                             "--optimizer",
                             "adam",
                             "--lr",
                             "0.001",
                             "--price-per-hour",
                             "3.6",
                             "--json",
                             "--run-dir",
                             path("compare").string()});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const auto document = finished.document();
  EXPECT_EQ(document["schema"], "lockstep.compare/1");
  ASSERT_EQ(document["rows"].size(), 3U);
  EXPECT_EQ(document["rows"][0]["speedup"], 1.0);
  for (const auto& row : document["rows"]) {
    EXPECT_EQ(row["exit"], "completed");
    EXPECT_GT(row["epochs"][0]["eval_accuracy"], 0.75);
    EXPECT_GT(row["cost"], 0.0);
  }
}

}  // namespace
}  // namespace lockstep::e2e
