// `lockstep train` and `compare` around a scripted worker: run folders, JSON documents, exit codes, what is left
// behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "e2e/command.h"

namespace lockstep::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class Train : public testing::Test {
 protected:
  CommandOptions options(const std::string& script) const {
    return {.environment = {{"LOCKSTEP_WORKER", built("tests/e2e/scripted_worker")}, {"SCRIPT", script}},
            .folder = folder_.path()};
  }

  std::vector<std::string> words(const std::string& command, std::vector<std::string> args) const {
    std::vector<std::string> all{built("bin/lockstep"), command, "--device", "cpu", "--epochs", "2", "--data",
                                 "synthetic:1x28x28:64"};
    all.insert(all.end(), args.begin(), args.end());
    return all;
  }

  CommandResult train(const std::vector<std::string>& args, const std::string& script = "") const {
    return run_command(words("train", args), options(script));
  }

  json document(const CommandResult& result) const {
    const json parsed = json::parse(result.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << "not one JSON document: " << result.out << "\n" << result.err;
    return parsed;
  }

  fs::path only_run() const {
    std::vector<fs::path> runs;
    for (const auto& entry : fs::directory_iterator(folder_.path() / "runs")) runs.push_back(entry.path());
    EXPECT_EQ(runs.size(), 1u);
    return runs.empty() ? fs::path() : runs.front();
  }

  TemporaryDirectory folder_{"lockstep-train-test"};
};

TEST_F(Train, PrintsOneJsonDocument) {
  const CommandResult result = train({"--nproc", "2", "--json", "--price-per-hour", "3.6", "--scale-lr", "linear"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json got = document(result);
  EXPECT_EQ(got["schema"], "lockstep.train/1");
  EXPECT_EQ(got["strategy"], "ddp");
  EXPECT_EQ(got["world_size"], 2);
  EXPECT_EQ(got["device"], "cpu");
  EXPECT_EQ(got["global_batch"], 64);
  EXPECT_DOUBLE_EQ(got["lr"].get<double>(), 0.0025);
  EXPECT_TRUE(got["resumed_from_step"].is_null());
  ASSERT_EQ(got["epochs"].size(), 2u);
  EXPECT_EQ(got["epochs"][1]["eval_accuracy"], 0.75);
  EXPECT_EQ(got["final_weights_sha256"], "feed");
  EXPECT_EQ(got["exit"], "completed");
  EXPECT_GT(got["cost"].get<double>(), 0);
  EXPECT_EQ(got["currency"], "USD");
  EXPECT_THAT(result.err, HasSubstr("epoch 2/2"));
  EXPECT_THAT(result.err, Not(HasSubstr("\033"))) << "no terminal, no control sequences";
}

TEST_F(Train, KeepsItsRecordsInTheRunFolder) {
  const CommandResult result = train({"--lr", "0.5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("completed at step 8"));
  const fs::path run = only_run();
  EXPECT_THAT(run.filename().string(), testing::MatchesRegex("mlp-single-[0-9]+-[0-9]+"));
  const json plan = json::parse(read_file(run / "plan.json"));
  EXPECT_EQ(plan["schema"], "lockstep.plan/1");
  EXPECT_EQ(plan["lr"], 0.5);
  EXPECT_EQ(plan["origins"]["lr"], "flag");
  EXPECT_THAT(plan["command_line"].get<std::string>(),
              HasSubstr("lockstep train --device cpu --epochs 2 --data synthetic:1x28x28:64 --lr 0.5"));
  EXPECT_TRUE(fs::exists(run / "events.jsonl"));
  EXPECT_TRUE(fs::is_directory(run / "logs"));
}

TEST_F(Train, TwoRunsInOneSecondHaveFoldersOfTheirOwn) {
  const auto args = words("train", {});
  RunningCommand first(args, options(""));
  RunningCommand second(args, options(""));
  EXPECT_EQ(first.wait().exit_code, 0);
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path() / "runs"), fs::directory_iterator()), 2);
}

TEST_F(Train, AFolderThatHoldsARunIsKept) {
  ASSERT_EQ(train({"--run-dir", "r"}).exit_code, 0);
  const std::string events = read_file(folder_.path() / "r" / "events.jsonl");
  const CommandResult again = train({"--run-dir", "r"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("--run-dir r: already holds a run"));
  EXPECT_EQ(read_file(folder_.path() / "r" / "events.jsonl"), events);
  std::ofstream(folder_.path() / "r" / "notes.txt") << "mine";
  EXPECT_EQ(train({"--run-dir", "r", "--overwrite"}).exit_code, 0);
  EXPECT_EQ(read_file(folder_.path() / "r" / "notes.txt"), "mine");
  EXPECT_EQ(train({"--run-dir", "r", "--resume", "auto"}).exit_code, 0);
}

TEST_F(Train, TwoJobsInOneFolderAreRefused) {
  RunningCommand first(words("train", {"--run-dir", "r", "--resume", "auto"}), options("endless"));
  ASSERT_TRUE(first.wait_for("run folder r"));
  const CommandResult second = train({"--run-dir", "r", "--resume", "auto"});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr("another lockstep is training in it now"));
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 143);
}

TEST_F(Train, ResumeTakesTheNewestCompleteCheckpoint) {
  ASSERT_EQ(train({"--run-dir", "r"}).exit_code, 0);
  const fs::path checkpoints = folder_.path() / "r" / "checkpoints";
  for (const auto* name : {"step_9", "step_10", "step_11", "step_x"}) fs::create_directories(checkpoints / name);
  for (const auto* name : {"step_9", "step_10", "step_x"}) std::ofstream(checkpoints / name / "MANIFEST.json") << "{}";
  ASSERT_EQ(train({"--run-dir", "r", "--resume", "auto"}).exit_code, 0);
  EXPECT_EQ(json::parse(read_file(folder_.path() / "r" / "plan.json"))["resume"], "auto");
  ASSERT_EQ(train({"--run-dir", "other", "--resume", "r/checkpoints/step_9"}).exit_code, 0);
  EXPECT_EQ(json::parse(read_file(folder_.path() / "other" / "plan.json"))["resume"], "r/checkpoints/step_9");
  const CommandResult incomplete = train({"--run-dir", "third", "--resume", "r/checkpoints/step_11"});
  EXPECT_EQ(incomplete.exit_code, 2);
  EXPECT_THAT(incomplete.err, HasSubstr("holds no complete checkpoint"));
  EXPECT_FALSE(fs::exists(folder_.path() / "third"));
}

TEST_F(Train, ResumeAutoWithoutAFolderTakesTheNewestMatchingRun) {
  ASSERT_EQ(train({"--resume", "auto"}).exit_code, 0) << "nothing there: starts afresh";
  ASSERT_EQ(train({"--resume", "auto"}).exit_code, 0);
  only_run();
  ASSERT_EQ(train({"--resume", "auto", "--model", "cnn"}).exit_code, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path() / "runs"), fs::directory_iterator()), 2);
}

TEST_F(Train, InputThatTheRanksRefuseLeavesNothingBehind) {
  for (const auto* run_dir : {"", "deep/er/r"}) {
    std::vector<std::string> args{"--json"};
    if (*run_dir != 0) args.insert(args.end(), {"--run-dir", run_dir});
    const CommandResult result = train(args, "bad-data");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("labels: 12 is out of range"));
    EXPECT_EQ(document(result)["exit"], "failed");
    EXPECT_TRUE(fs::is_empty(folder_.path())) << run_dir;
  }
}

TEST_F(Train, ARunIsReplacedOnlyOnceTheNewOneHasBegun) {
  ASSERT_EQ(train({"--run-dir", "r"}).exit_code, 0);
  const fs::path run = folder_.path() / "r";
  const std::string events = read_file(run / "events.jsonl");
  for (const auto* script : {"bad-data", "killed-early"}) {
    const CommandResult refused = train({"--run-dir", "r", "--overwrite", "--lr", "0.7"}, script);
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_EQ(read_file(run / "events.jsonl"), events) << script;
    EXPECT_NE(json::parse(read_file(run / "plan.json"))["lr"], 0.7) << script;
    EXPECT_EQ(std::distance(fs::directory_iterator(run), fs::directory_iterator()), 3) << script;
  }
  ASSERT_EQ(train({"--run-dir", "r", "--overwrite", "--lr", "0.7"}).exit_code, 0);
  EXPECT_EQ(json::parse(read_file(run / "plan.json"))["lr"], 0.7);
  EXPECT_EQ(std::distance(fs::directory_iterator(run), fs::directory_iterator()), 3);
}

// What a kill of the command leaves at each moment of a replacement.
TEST_F(Train, AKilledReplacementLosesNoRun) {
  const fs::path run = folder_.path() / "r";
  const auto events_after_resume = [&] {
    EXPECT_EQ(train({"--run-dir", "r", "--resume", "auto"}, "bad-data").exit_code, 2);
    EXPECT_EQ(std::distance(fs::directory_iterator(run), fs::directory_iterator()), 3);
    return read_file(run / "events.jsonl");
  };
  ASSERT_EQ(train({"--run-dir", "r"}).exit_code, 0);
  const std::string events = read_file(run / "events.jsonl");
  fs::create_directory(run / ".moving-run");
  fs::rename(run / "plan.json", run / ".moving-run" / "plan.json");
  EXPECT_EQ(events_after_resume(), events) << "half moved";
  fs::create_directory(run / ".replaced-run");
  for (const auto* name : {"plan.json", "events.jsonl", "logs"}) fs::rename(run / name, run / ".replaced-run" / name);
  std::ofstream(run / "plan.json") << "{}";
  EXPECT_EQ(events_after_resume(), events) << "the new run had not begun";
  fs::create_directory(run / ".removed-run");
  EXPECT_EQ(events_after_resume(), events) << "half removed";
}

TEST_F(Train, BR101_CheckpointsInTheMakingOfAKilledRunGo) {
  ASSERT_EQ(train({"--run-dir", "r"}).exit_code, 0);
  const fs::path unfinished = folder_.path() / "r" / "checkpoints" / ".saving-step_7";
  fs::create_directories(unfinished);
  ASSERT_EQ(train({"--run-dir", "r", "--resume", "auto"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(unfinished));
}

TEST_F(Train, OnlyRecordsThatAreThereAreListed) {
  const CommandResult result = train({}, "killed-early");
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_THAT(result.out, HasSubstr("(plan.json, logs/)"));
}

TEST_F(Train, ARunFolderNeedsNoUtf8) {
  const CommandResult result = train({"--run-dir", "r\xff", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(document(result)["exit"], "completed");
  EXPECT_TRUE(fs::exists(folder_.path() / "r\xff" / "events.jsonl"));
  const CommandResult refused = train({"--dump-final", "w\xff"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--dump-final: is not valid UTF-8"));
}

TEST_F(Train, SyntheticImagesLargerThanMemoryAreRefusedWithTheirSize) {
  const CommandResult result = run_command(
      {built("bin/lockstep"), "train", "--device", "cpu", "--nproc", "1000", "--data", "synthetic:3x1024x1024:300000"},
      options(""));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("301,024 images take 881.9 GiB in each of 1000 processes, 861.2 TiB together, but "));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Train, BR094_AutoTakesTheCpuWhereLibTorchHasNoCuda) {
  CommandOptions with_gpu = options("");
  with_gpu.environment["LOCKSTEP_NVML_LIBRARY"] = LOCKSTEP_FAKE_NVML;
  with_gpu.environment["FAKE_NVML_GPUS"] = "NVIDIA T4/7.5/GPU-a/15360/0";
  with_gpu.environment["CUDA_VISIBLE_DEVICES"] = std::nullopt;
  const auto device = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> command{built("bin/lockstep"), "train", "--data", "synthetic:1x28x28:64", "--json"};
    command.insert(command.end(), flags.begin(), flags.end());
    const CommandResult result = run_command(command, with_gpu);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return document(result)["device"].get<std::string>() + " " + result.err;
  };
  EXPECT_THAT(device({}), testing::StartsWith("cuda "));
  with_gpu.environment["WHY_CPU_ONLY"] = "it has no CUDA library\n";
  EXPECT_THAT(device({}), testing::AllOf(testing::StartsWith("cpu "),
                                         HasSubstr("the CPU (no usable GPU: it has no CUDA library)")));
  EXPECT_THAT(device({"--device", "cuda"}), testing::StartsWith("cuda ")) << "what was asked for is not changed";
}

TEST_F(Train, ARefusalOfAllRanksIsToldOnce) {
  const CommandResult result = train({"--nproc", "3"}, "bad-data");
  EXPECT_EQ(result.exit_code, 2);
  const std::string message = "lockstep: error: labels: 12 is out of range\nhint: look at the labels\n";
  const auto at = result.err.find(message);
  ASSERT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.substr(at + message.size()), "") << "the message is the last word";
  EXPECT_THAT(result.err, Not(HasSubstr("failed first")));
  EXPECT_THAT(result.out, Not(HasSubstr("failed at step")));
}

TEST_F(Train, AKilledRankIsInTheDocument) {
  const CommandResult result = train({"--nproc", "2", "--json"}, "killed");
  EXPECT_EQ(result.exit_code, 137) << result.err;
  const json got = document(result);
  EXPECT_EQ(got["exit"], "failed");
  EXPECT_EQ(got["failure"]["rank"], 1);
  EXPECT_EQ(got["failure"]["signal"], SIGKILL);
  EXPECT_TRUE(got["failure"]["exit_code"].is_null());
  EXPECT_EQ(got["failure"]["step"], 3);
  EXPECT_TRUE(got["final_weights_sha256"].is_null());
  EXPECT_THAT(result.err, HasSubstr("failed first: killed by SIGKILL at step 3"));
}

TEST_F(Train, DivergenceExitsWithOneAndItsReason) {
  const CommandResult result = train({"--json"}, "diverged");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(document(result)["exit"], "failed");
  EXPECT_EQ(document(result)["failure"]["message"], "the loss is not finite since step 3");
}

TEST_F(Train, AWorkerThatRecordsNothingIsNoSuccess) {
  const CommandResult result = train({"--json"}, "silent");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(document(result)["exit"], "failed");
}

TEST_F(Train, CtrlCStopsWith130AndAStoppedDocument) {
  RunningCommand running(words("train", {"--json", "--nproc", "2"}), options("endless"));
  ASSERT_TRUE(running.wait_for("run folder"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  running.send(SIGINT);
  const CommandResult result = running.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_EQ(document(result)["exit"], "stopped");
}

TEST_F(Train, AProgressBarComesOnlyWhenAskedForOrOnATerminal) {
  RunningCommand running(words("train", {"--progress", "on"}), options("endless"));
  EXPECT_TRUE(running.wait_for("/2 ["));
  running.send(SIGTERM);
  running.wait();
  EXPECT_THAT(train({}).err, Not(HasSubstr("[")));
}

TEST_F(Train, TheBarOnATerminalNeedsNoEscapeSequencesWithNoColor) {
  std::string line;
  for (const auto& word : words("train", {})) line += word + " ";
  for (const auto* no_color : {"", "1"}) {
    CommandOptions in_terminal = options("steps");
    in_terminal.environment["NO_COLOR"] = no_color;
    in_terminal.environment["TERM"] = "xterm";
    const CommandResult result =
        run_command({"script", "--quiet", "--return", "--command", line, "/dev/null"}, in_terminal);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("/2 [")) << "no bar";
    EXPECT_EQ(result.out.find('\033') == std::string::npos, *no_color != 0) << result.out;
  }
}

TEST_F(Train, CompareRunsEveryStrategyAndSaysWhichLoses) {
  const CommandResult result = run_command(words("compare", {"--price-per-hour", "1"}), options("slower"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("strategy  devices  s/epoch"));
  EXPECT_THAT(result.out, HasSubstr("ddp loses to single here: 0.50 times its images a second"));
  EXPECT_THAT(result.out, HasSubstr("the global batch differs (single 32, dp 64, ddp 64)"));
  EXPECT_TRUE(fs::exists(only_run() / "ddp" / "plan.json"));
  EXPECT_TRUE(fs::exists(only_run() / "compare.json"));
}

TEST_F(Train, ComparePrintsOneJsonDocument) {
  const CommandResult result = run_command(
      words("compare", {"--json", "--strategies", "single,ddp", "--price-per-hour", "1"}), options("slower"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json got = document(result);
  EXPECT_EQ(got["schema"], "lockstep.compare/1");
  ASSERT_EQ(got["rows"].size(), 2u);
  EXPECT_EQ(got["rows"][0]["schema"], "lockstep.train/1");
  EXPECT_EQ(got["rows"][0]["speedup"], 1.0);
  EXPECT_EQ(got["rows"][1]["speedup"], 0.5);
  EXPECT_EQ(got["rows"][1]["currency"], "USD");
}

TEST_F(Train, CompareGoesOnAfterAFailedStrategy) {
  const CommandResult result = run_command(words("compare", {"--run-dir", "c"}), options("diverged"));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("failed"));
  for (const auto* strategy : {"single", "dp", "ddp"})
    EXPECT_TRUE(fs::exists(folder_.path() / "c" / strategy / "plan.json"));
  EXPECT_EQ(run_command(words("compare", {"--run-dir", "c"}), options("")).exit_code, 2) << "it holds a run";
}

TEST_F(Train, CompareWithInputThatIsRefusedLeavesNothingBehind) {
  const CommandResult result = run_command(words("compare", {}), options("bad-data"));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

}  // namespace
}  // namespace lockstep::e2e
