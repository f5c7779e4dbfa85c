#include "lockstep/config/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/config/command_specs.h"

namespace lockstep::config {
namespace {

using Words = std::vector<std::string>;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

FlagValues parse_train(const Words& args) {
  return parse_flags(command_spec("train"), args);
}

std::string error_of(const Words& args) {
  try {
    parse_train(args);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "no error";
}

TEST(Flags, TakesBothFormsAndUnderscores) {
  const FlagValues values =
      parse_train({"--batch-size", "64", "--lr=0.5", "--max_steps=7", "--nesterov", "--drop-last=false"});
  EXPECT_EQ(values.integer("batch-size"), 64);
  EXPECT_EQ(values.real("lr"), 0.5);
  EXPECT_EQ(values.integer("max-steps"), 7);
  EXPECT_TRUE(values.enabled("nesterov"));
  EXPECT_FALSE(values.enabled("drop-last"));
  EXPECT_TRUE(values.given("drop-last"));
  EXPECT_EQ(values.origin("batch-size"), "flag");
  EXPECT_EQ(values.origin("epochs"), "default");
  EXPECT_EQ(values.integer("epochs"), 5);
  EXPECT_FALSE(values.has_value("clip-norm"));
}

TEST(Flags, StopsAtHelp) {
  EXPECT_TRUE(parse_train({"--help", "--nonsense"}).help_requested);
  EXPECT_TRUE(parse_train({"--epochs", "3", "-h"}).help_requested);
}

TEST(Flags, NamesTheNearestFlag) {
  EXPECT_THAT(error_of({"--batchsize", "3"}), StartsWith("unknown flag --batchsize; did you mean --batch-size?"));
  EXPECT_THAT(error_of({"--epoch=3"}), StartsWith("unknown flag --epoch; did you mean --epochs?"));
  EXPECT_THAT(error_of({"--qqqqqqqq"}), StartsWith("unknown flag --qqqqqqqq\nhint: lockstep train --help"));
  EXPECT_THAT(error_of({"-x"}), StartsWith("unknown flag -x"));
}

TEST(Flags, RefusesWordsThatBelongToNoFlag) {
  EXPECT_THAT(error_of({"mlp"}), HasSubstr("unexpected word 'mlp': lockstep train takes flags only"));
  EXPECT_THAT(error_of({"--", "mlp"}), HasSubstr("unexpected word 'mlp' after --"));
}

TEST(Flags, BR059_ARepeatedFlagWithAnotherValueIsAnErrorThatNamesBoth) {
  EXPECT_EQ(error_of({"--lr", "0.1", "--lr=0.2"}), "--lr is given twice with different values: 0.1 and 0.2");
  EXPECT_EQ(error_of({"--batch-size", "8", "--batch_size", "9"}),
            "--batch-size is given twice with different values: 8 and 9");
  EXPECT_EQ(parse_train({"--lr", "0.1", "--lr", "0.1"}).real("lr"), 0.1);
}

TEST(Flags, BR059_AMissingOrSwallowedValueIsAnError) {
  EXPECT_EQ(error_of({"--nproc"}), "--nproc needs a value: expected a whole number from 1 to 1024 or auto");
  EXPECT_THAT(error_of({"--run-dir", "--overwrite"}),
              StartsWith("--run-dir needs a value (expected a path), but the next word is --overwrite"));
  EXPECT_EQ(parse_train({"--run-dir=--odd"}).text("run-dir"), "--odd");
}

struct BadValue {
  Words args;
  std::string message;
};

TEST(Flags, BR059_EveryValueErrorNamesFlagValueAndRange) {
  const std::vector<BadValue> cases{
      {{"--batch-size", "0"}, "--batch-size: '0' is not accepted; expected a whole number from 1 to 1048576"},
      {{"--batch-size", "-4"}, "--batch-size: '-4' is not accepted; expected a whole number from 1 to 1048576"},
      {{"--batch-size="}, "--batch-size: is empty; expected a whole number from 1 to 1048576"},
      {{"--nproc", "2.5"}, "--nproc: '2.5' is not accepted; expected a whole number from 1 to 1024 or auto"},
      {{"--nproc", "GPUS=2"}, "--nproc: 'GPUS=2' is not accepted; expected a whole number from 1 to 1024 or auto"},
      {{"--nproc", "-2"}, "--nproc: '-2' is not accepted; expected a whole number from 1 to 1024 or auto"},
      {{"--nproc", "99999999999999999999"},
       "--nproc: '99999999999999999999' is not accepted; expected a whole number from 1 to 1024 or auto"},
      {{"--epochs", "3x"}, "--epochs: '3x' is not accepted; expected a whole number from 1 to 9007199254740991"},
      {{"--seed", "9007199254740993"},
       "--seed: '9007199254740993' is not accepted; expected a whole number from 0 to 9007199254740991"},
      {{"--lr", "-0.1"}, "--lr: '-0.1' is not accepted; expected a number of at least 0"},
      {{"--lr", "nan"}, "--lr: 'nan' is not accepted; expected a number of at least 0"},
      {{"--lr", "inf"}, "--lr: 'inf' is not accepted; expected a number of at least 0"},
      {{"--momentum", "1"}, "--momentum: '1' is not accepted; expected a number from 0 to below 1"},
      {{"--clip-norm", "0"}, "--clip-norm: '0' is not accepted; expected a number above 0"},
      {{"--nesterov=yes"}, "--nesterov: 'yes' is not accepted; expected true or false"},
      {{"--optimizer", "adamx"},
       "--optimizer: 'adamx' is not accepted; did you mean adam? (expected one of sgd, adam, adamw)"},
      {{"--schedule", "warmrestarts"},
       "--schedule: 'warmrestarts' is not accepted; expected one of constant, cosine, step"},
      {{"--strategy", "zero3"}, "--strategy zero3: not in this version (have: single, ddp, dp, zero1, zero2)"},
      {{"--devices", "0,,1"},
       "--devices: '0,,1' is not accepted; expected whole numbers from 0 to 1023 with commas "
       "between, such as 0,2"},
      {{"--devices", "1,1"}, "--devices: '1,1' names 1 twice"},
      {{"--stop-after", "soon"},
       "--stop-after: 'soon' is not accepted; expected a duration above 0 such as 500ms, 10s, "
       "30m, 2h (a bare number is seconds)"},
      {{"--stop-after", "0"},
       "--stop-after: '0' is not accepted; expected a duration above 0 such as 500ms, 10s, 30m, "
       "2h (a bare number is seconds)"},
      {{"--run-dir="}, "--run-dir: is empty; expected a path"},
  };
  for (const auto& [args, message] : cases) EXPECT_EQ(error_of(args), message) << join(args, " ");
}

TEST(Flags, WordsAfterTheFlagsAreKeptWhereACommandTakesThem) {
  const CommandSpec spec{.name = "x",
                         .summary = "",
                         .usage = "x",
                         .description = "",
                         .flags = {{.name = "count", .kind = FlagKind::kInteger, .low = 1, .high = 9}},
                         .rest_name = "PROG"};
  EXPECT_THAT(parse_flags(spec, {"--count", "2", "prog", "--count", "99"}).rest, ElementsAre("prog", "--count", "99"));
  EXPECT_THAT(parse_flags(spec, {"--", "--count"}).rest, ElementsAre("--count"));
}

class ConfigFile : public testing::Test {
 protected:
  std::string write(const std::string& content) {
    std::ofstream(path_) << content;
    return path_;
  }

  std::string error_in(const std::string& content) {
    FlagValues values = parse_train({});
    try {
      add_config_file(values, write(content));
    } catch (const ConfigError& error) {
      const std::string what = error.what();
      EXPECT_THAT(what, StartsWith(path_ + ":"));
      return what.substr(std::min(what.size(), path_.size() + 1));
    }
    return "no error";
  }

  TemporaryDirectory folder_{"lockstep-config-test"};
  std::string path_ = (folder_.path() / "train.toml").string();
};

TEST_F(ConfigFile, AFlagWinsOverTheFile) {
  FlagValues values = parse_train({"--lr", "0.5"});
  add_config_file(values,
                  write("lr = 0.1\nbatch_size = 64\nnesterov = true\nstop-after = \"10m\"\ndevices = [0, 2]\n"));
  EXPECT_EQ(values.real("lr"), 0.5);
  EXPECT_EQ(values.integer("batch-size"), 64);
  EXPECT_TRUE(values.enabled("nesterov"));
  EXPECT_EQ(values.duration("stop-after"), std::chrono::minutes(10));
  EXPECT_THAT(values.list("devices"), ElementsAre("0", "2"));
  EXPECT_EQ(values.origin("lr"), "flag");
  EXPECT_EQ(values.origin("batch-size"), path_ + ":2");
}

TEST_F(ConfigFile, ErrorsNameFileAndLine) {
  EXPECT_THAT(error_in("lr = 0.1\nbatchsize = 3\n"), StartsWith("2: unknown key batchsize; did you mean batch-size?"));
  EXPECT_EQ(error_in("\n\nbatch-size = 0\n"),
            "3: batch-size: '0' is not accepted; expected a whole number from 1 to 1048576");
  EXPECT_EQ(error_in("epochs = \"3\"\n"),
            "1: epochs: has the wrong type; expected a whole number from 1 to 9007199254740991, without quotes");
  EXPECT_EQ(
      error_in("model = 3\n"),
      "1: model: has the wrong type; expected one of mlp, cnn, resnet18, resnet50, or a file whose name ends in .pt");
  EXPECT_EQ(error_in("epochs = 2.5\n"),
            "1: epochs: has the wrong type; expected a whole number from 1 to 9007199254740991, without quotes");
  EXPECT_THAT(error_in("lr = 0.1\nlr = 0.2\n"), StartsWith("2: "));
  EXPECT_THAT(error_in("batch-size = 4\nbatch_size = 5\n"), HasSubstr("batch_size is set a second time"));
  EXPECT_THAT(error_in("lr = \n"), StartsWith("1: "));
  EXPECT_THAT(error_in("[optimizer]\nlr = 0.1\n"), HasSubstr("optimizer: has the wrong type"));
  EXPECT_THAT(error_in("config = \"other.toml\"\n"), HasSubstr("unknown key config"));
}

TEST_F(ConfigFile, ABadLineIsAnErrorEvenWhereAFlagWins) {
  FlagValues values = parse_train({"--batch-size", "8"});
  EXPECT_THROW(add_config_file(values, write("batch-size = 0\n")), ConfigError);
}

TEST_F(ConfigFile, AMissingFileIsNamed) {
  FlagValues values = parse_train({});
  try {
    add_config_file(values, "/nowhere/train.toml");
    FAIL() << "a missing file was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), StartsWith("--config /nowhere/train.toml"));
  }
}

}  // namespace
}  // namespace lockstep::config
