// The command as it is typed: help, version, usage errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "e2e/command.h"

namespace lockstep::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class Usage : public testing::Test {
 protected:
  CommandResult lockstep(std::vector<std::string> args) {
    args.insert(args.begin(), built("bin/lockstep"));
    return run_command(args, {.folder = folder_.path()});
  }

  void expect_refused(const std::vector<std::string>& args, const std::string& message) {
    const CommandResult result = lockstep(args);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, StartsWith("lockstep: error: " + message));
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "something was left behind";
  }

  TemporaryDirectory folder_{"lockstep-usage-test"};
};

TEST_F(Usage, HelpComesIn20Milliseconds) {
  std::vector<double> seconds;
  for (int i = 0; i < 20; ++i) {
    const CommandResult result = lockstep({"--help"});
    ASSERT_EQ(result.exit_code, 0);
    ASSERT_THAT(result.out, HasSubstr("usage: lockstep COMMAND"));
    seconds.push_back(result.duration.count());
  }
  std::sort(seconds.begin(), seconds.end());
  RecordProperty("median_ms", std::to_string(seconds[10] * 1000));
  EXPECT_LT(seconds[10], 0.020);
}

TEST_F(Usage, HelpInAllItsForms) {
  const std::string overview = lockstep({"--help"}).out;
  EXPECT_EQ(lockstep({}).out, overview);
  EXPECT_EQ(lockstep({"help"}).out, overview);
  EXPECT_THAT(lockstep({"train", "--help"}).out, HasSubstr("--batch-size N"));
  EXPECT_THAT(lockstep({"help", "train"}).out, HasSubstr("The global batch is this times --nproc"));
  EXPECT_THAT(lockstep({"--version"}).out, testing::MatchesRegex("lockstep [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  EXPECT_THAT(lockstep({"man"}).out, StartsWith(".TH LOCKSTEP 1"));
  for (const auto* command : {"train", "compare", "run", "data", "doctor"}) {
    EXPECT_EQ(lockstep({command, "--help"}).exit_code, 0) << command;
    EXPECT_THAT(overview, HasSubstr(std::string("  ") + command + " ")) << command;
  }
}

TEST_F(Usage, HelpHasNoControlCharacters) {
  const std::string out = lockstep({"train", "--help"}).out;
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](char c) { return c == '\n' || c >= ' ' || c < 0; }));
}

TEST_F(Usage, TheBashCompletionCompletes) {
  const std::string script =
      "source <(" + built("bin/lockstep") + " completion bash) && " +
      "COMP_WORDS=(lockstep train --strategy d) COMP_CWORD=3 && _lockstep && echo ${COMPREPLY[@]}";
  EXPECT_EQ(run_command({"bash", "-c", script}).out, "ddp dp\n");
  const std::string data = "source <(" + built("bin/lockstep") + " completion bash) && COMP_CWORD=";
  EXPECT_EQ(
      run_command({"bash", "-c", data + "2 COMP_WORDS=(lockstep data c) && _lockstep && echo ${COMPREPLY[@]}"}).out,
      "check\n");
  EXPECT_EQ(
      run_command({"bash", "-c", data + "3 COMP_WORDS=(lockstep data make --i) && _lockstep && echo ${COMPREPLY[@]}"})
          .out,
      "--images\n");
  EXPECT_THAT(lockstep({"completion", "zsh"}).out, StartsWith("#compdef lockstep"));
  expect_refused({"completion", "fish"}, "lockstep completion: 'fish' is not accepted; expected bash or zsh");
}

TEST_F(Usage, BR059_NonsenseIsRefusedAndNothingIsStarted) {
  expect_refused({"trian"}, "unknown command trian; did you mean train?");
  expect_refused({"--nproc", "2"}, "unknown flag before a command: --nproc");
  expect_refused({"train", "--batchsize", "3"}, "unknown flag --batchsize; did you mean --batch-size?");
  expect_refused({"train", "--batch-size", "0"},
                 "--batch-size: '0' is not accepted; expected a whole number from 1 to");
  expect_refused({"train", "--nproc", "GPUS=2"}, "--nproc: 'GPUS=2' is not accepted");
  expect_refused({"train", "--lr", "0.1", "--lr", "0.2"}, "--lr is given twice with different values: 0.1 and 0.2");
  expect_refused({"train", "--run-dir", "--overwrite"}, "--run-dir needs a value");
  expect_refused({"train", "--strategy", "zero3"},
                 "--strategy zero3: not in this version (have: single, ddp, dp, zero1, zero2)");
  expect_refused({"train", "--strategy", "single", "--nproc", "2", "--device", "cpu"},
                 "--strategy single trains on one");
  expect_refused({"train", "--data", "cifar10:/nowhere"},
                 "--data cifar10:/nowhere: the folder /nowhere does not exist");
  expect_refused({"train", "--data", "fashionmnist"}, "--data: ");
  expect_refused({"train", "--device", "cpu", "--data", "synthetic:1x28x28", "--resume", "/nowhere"}, "");
  expect_refused({"compare", "--strategies", "single,single"}, "--strategies: 'single,single' names single twice");
}

TEST_F(Usage, ATypoInAConfigFileIsNamedWithItsLine) {
  const TemporaryDirectory elsewhere("lockstep-config");
  const std::string path = (elsewhere.path() / "mlp.toml").string();
  std::ofstream(path) << "model = \"mlp\"\nbatch_sise = 4\n";
  expect_refused({"train", "--config", path}, path + ":2: unknown key batch_sise; did you mean batch-size?");
}

TEST_F(Usage, AMissingWorkerIsNamed) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"train", "--device", "cpu", "--data", "synthetic:1x28x28"},
        {"run", "--", "touch", "ran"}}) {
    std::vector<std::string> command{built("bin/lockstep")};
    command.insert(command.end(), words.begin(), words.end());
    const CommandResult result =
        run_command(command, {.environment = {{"LOCKSTEP_WORKER", "/nowhere/worker"}}, .folder = folder_.path()});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("LOCKSTEP_WORKER=/nowhere/worker: does not exist"));
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

}  // namespace
}  // namespace lockstep::e2e
