#include "lockstep/telemetry/run_summary.h"

#include <gtest/gtest.h>

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

const json kExpected{{"strategy", "ddp"}, {"world_size", 2}, {"device", "cpu"}, {"global_batch", 64}, {"lr", 0.01}};

json start() {
  return {{"event", "run_start"}, {"world_size", 2}, {"steps_per_epoch", 10}, {"resumed_from_step", nullptr}};
}

json epoch(int number, double seconds, double rate, json accuracy) {
  return {{"event", "epoch"},
          {"epoch", number},
          {"steps", 10},
          {"train_loss", 0.5},
          {"eval_accuracy", accuracy},
          {"seconds", seconds},
          {"images_per_second", rate},
          {"peak_memory_bytes", {1000, 1001}}};
}

TEST(RunSummary, ACompletedRun) {
  RunSummary summary(kExpected);
  summary.add(start());
  summary.add(epoch(1, 2.0, 100, 0.8));
  summary.add(epoch(2, 1.0, 200, nullptr));
  summary.add({{"event", "run_end"}, {"exit", "completed"}, {"steps", 20}, {"final_weights_sha256", "ab"}});
  const json document = summary.document({.exit_code = 0}, "runs/x");
  EXPECT_EQ(document["schema"], "lockstep.train/1");
  EXPECT_EQ(document["strategy"], "ddp");
  EXPECT_EQ(document["world_size"], 2);
  EXPECT_EQ(document["global_batch"], 64);
  EXPECT_TRUE(document["resumed_from_step"].is_null());
  ASSERT_EQ(document["epochs"].size(), 2u);
  EXPECT_EQ(document["epochs"][0]["peak_memory_bytes"], json({1000, 1001}));
  EXPECT_TRUE(document["epochs"][1]["eval_loss"].is_null());
  EXPECT_FALSE(document["epochs"][1].contains("event"));
  EXPECT_EQ(document["final_weights_sha256"], "ab");
  EXPECT_EQ(document["exit"], "completed");
  EXPECT_FALSE(document.contains("failure"));
  EXPECT_EQ(summary.median("images_per_second"), 150);
  EXPECT_EQ(summary.last("eval_accuracy"), 0.8);
  EXPECT_EQ(summary.steps(), 20);
}

TEST(RunSummary, OnlyTheLastRunCounts) {
  RunSummary summary(kExpected);
  summary.add(start());
  summary.add(epoch(1, 2.0, 100, 0.8));
  json again = start();
  again["resumed_from_step"] = 10;
  summary.add(again);
  const json document = summary.document({.exit_code = 137}, "runs/x");
  EXPECT_EQ(document["resumed_from_step"], 10);
  EXPECT_TRUE(document["epochs"].empty());
  EXPECT_EQ(document["exit"], "failed");
  EXPECT_EQ(summary.steps_of_this_run(), 0);
}

TEST(RunSummary, TheExitCodeOverrulesTheRecord) {
  RunSummary summary(kExpected);
  EXPECT_EQ(summary.exit({.exit_code = 0}), "failed") << "nothing was recorded";
  summary.add(start());
  EXPECT_EQ(summary.exit({.exit_code = 0}), "completed");
  EXPECT_EQ(summary.exit({.exit_code = 130, .stopped_by_signal = true}), "stopped");
  summary.add({{"event", "run_end"}, {"exit", "completed"}});
  EXPECT_EQ(summary.exit({.exit_code = 139}), "failed");
  summary.add({{"event", "run_end"}, {"exit", "stopped"}});
  EXPECT_EQ(summary.exit({.exit_code = 0}), "stopped");
}

TEST(RunSummary, AFailureHasRankAndReason) {
  RunSummary summary(kExpected);
  summary.add(start());
  summary.add({{"event", "fault"}, {"message", "loss is not finite since step 7"}});
  const json document = summary.document({.exit_code = 1, .failure = {{"rank", 1}}}, "runs/x");
  EXPECT_EQ(document["failure"]["rank"], 1);
  EXPECT_EQ(document["failure"]["message"], "loss is not finite since step 7");
}

TEST(RunSummary, APartOfAnEpochCountsItsOwnSteps) {
  RunSummary summary(kExpected);
  summary.add(start());
  summary.add(epoch(1, 1.0, 100, 0.5));
  EXPECT_EQ(summary.steps(), 10);
  json part = epoch(2, 1.0, 100, 0.5);
  part["steps"] = 3;
  summary.add(part);
  EXPECT_EQ(summary.steps(), 13);
}

TEST(RunSummary, TheReasonOfAFailedEndIsKept) {
  RunSummary summary(kExpected);
  summary.add(start());
  summary.add({{"event", "run_end"}, {"exit", "failed"}, {"message", "the weights of rank 1 differ"}});
  EXPECT_EQ(summary.document({.exit_code = 1}, "r")["failure"]["message"], "the weights of rank 1 differ");
}

TEST(RunSummary, FieldsOfTheWrongTypeDoNoHarm) {
  RunSummary summary(kExpected);
  summary.add({{"event", "run_start"}, {"steps_per_epoch", "many"}, {"resumed_from_step", "x"}});
  summary.add({{"event", "step"}, {"step", "one"}});
  summary.add({{"event", "epoch"}, {"epoch", {}}, {"seconds", "fast"}});
  summary.add({{"event", 3}});
  summary.add({{"event", "unheard-of"}});
  EXPECT_EQ(summary.steps(), 0);
  EXPECT_FALSE(summary.median("seconds").has_value());
}

}  // namespace
}  // namespace lockstep::telemetry
