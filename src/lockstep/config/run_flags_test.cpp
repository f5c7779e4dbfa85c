#include "lockstep/config/run_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const CommandSpec& spec() {
  static const CommandSpec kSpec = run_spec();
  return kSpec;
}

std::string refusal(const std::vector<std::string>& args) {
  try {
    parse_flags(spec(), args);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

EnvironmentReader reader(const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

TEST(RunFlags, BR059_NonsenseNamesTheFlagAndTheRange) {
  for (const char* port : {"66660", "0", "-1", "29500x", "", "2.5"}) {
    EXPECT_THAT(refusal({"--master-port", port, "prog"}),
                AllOf(HasSubstr("--master-port"), HasSubstr("a whole number from 1 to 65535")))
        << port;
  }
  for (const char* nproc : {"", "0", "-2", "2.5", "GPUS=2", "--work-dir", "1025"}) {
    for (const char* name : {"--nproc-per-node", "--nproc_per_node", "--nproc"}) {
      EXPECT_THAT(refusal({name, nproc, "prog"}),
                  AllOf(HasSubstr("--nproc"), HasSubstr("a whole number from 1 to 1024 or auto, cpu, gpu")))
          << name << " " << nproc;
    }
  }
  EXPECT_THAT(refusal({"--nproc-per-node=2", "--nproc-per-node=3", "prog"}), HasSubstr("given twice"));
  EXPECT_EQ(refusal({"--nproc-per-node=2", "--nproc_per_node", "2", "prog"}), "accepted");
  EXPECT_THAT(refusal({"--nprocs", "2", "prog"}), AllOf(HasSubstr("--nprocs"), HasSubstr("did you mean --nproc")));
  EXPECT_THAT(refusal({"--nnodes", "2", "prog"}), HasSubstr("--nnodes"));
  EXPECT_THAT(refusal({"--max-restarts", "1", "prog"}), HasSubstr("--max-restarts"));
  EXPECT_THAT(refusal({"--grace", "soon", "prog"}), HasSubstr("--grace"));
}

TEST(RunFlags, BR059_WordsAfterTheProgramAreItsOwn) {
  const std::vector<std::string> own{"prog", "--nproc-per-node", "x", "--unknown", "--", "-h"};
  std::vector<std::string> args{"--nproc-per-node", "2"};
  args.insert(args.end(), own.begin(), own.end());
  EXPECT_EQ(parse_flags(spec(), args).rest, own);
  args.insert(args.begin() + 2, "--");
  EXPECT_EQ(parse_flags(spec(), args).rest, own);
}

TEST(RunFlags, PetVariablesFillInAndTheCommandLineWins) {
  const auto environment = reader(
      {{"PET_NPROC_PER_NODE", "4"}, {"PET_MASTER_PORT", "1234"}, {"PET_NNODES", "1:1"}, {"PET_STANDALONE", "1"}});
  FlagValues values = parse_flags(spec(), {"--master-port", "99", "prog"});
  add_pet_variables(values, environment);
  EXPECT_EQ(values.text("nproc-per-node"), "4");
  EXPECT_EQ(values.origin("nproc-per-node"), "PET_NPROC_PER_NODE");
  EXPECT_EQ(values.integer("master-port"), 99);
  EXPECT_TRUE(values.enabled("standalone"));

  FlagValues shorter = parse_flags(spec(), {"--nproc", "2", "prog"});
  add_pet_variables(shorter, environment);
  EXPECT_FALSE(shorter.given("nproc-per-node"));
}

TEST(RunFlags, BR059_NonsenseInAPetVariableNamesTheVariable) {
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"PET_NPROC_PER_NODE", ""}, {"PET_MASTER_PORT", "66660"}, {"PET_NNODES", "2:4"}, {"PET_STANDALONE", "x"}}) {
    FlagValues values = parse_flags(spec(), {"prog"});
    try {
      add_pet_variables(values, reader({{name, value}}));
      ADD_FAILURE() << name;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
}

}  // namespace
}  // namespace lockstep::config
