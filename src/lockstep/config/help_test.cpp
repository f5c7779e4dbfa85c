#include "lockstep/config/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/config/command_specs.h"

namespace lockstep::config {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;

// Scripts rely on these: a flag may be added here, and taken away only with a new major version.
const std::vector<std::string> kTrainFlags{
    "accumulate",    "average",        "batch-size", "clip-norm",  "config",     "currency",   "data",
    "deterministic", "device",         "devices",    "drop-last",  "dump-final", "epochs",     "eval-every",
    "fuse",          "grace",          "init-from",  "json",       "keep",       "log-every",  "lr",
    "max-steps",     "model",          "momentum",   "nesterov",   "nproc",      "optimizer",  "overwrite",
    "precision",     "price-per-hour", "progress",   "resume",     "run-dir",    "save-every", "save-steps",
    "scale-lr",      "schedule",       "seed",       "stop-after", "strategy",   "strict-nan", "sync-bn",
    "warmup-epochs", "weight-decay",   "workers"};

TEST(FlagSet, NoFlagIsTakenAwaySilently) {
  EXPECT_THAT(command_spec("train").flag_names(), IsSupersetOf(kTrainFlags));
  std::vector<std::string> compare = kTrainFlags;
  std::erase_if(compare,
                [](const auto& name) { return name == "strategy" || name == "resume" || name == "dump-final"; });
  compare.push_back("strategies");
  EXPECT_THAT(command_spec("compare").flag_names(), IsSupersetOf(compare));
}

TEST(FlagSet, EveryFlagIsWhole) {
  std::vector<CommandSpec> specs = command_specs();
  for (const auto& command : command_specs()) {
    specs.insert(specs.end(), command.subcommands.begin(), command.subcommands.end());
  }
  for (const auto& spec : specs) {
    std::set<std::string> names;
    for (const auto& flag : spec.flags) {
      const std::string where = spec.name + " --" + flag.name;
      EXPECT_TRUE(names.insert(flag.name).second) << where << " is defined twice";
      EXPECT_FALSE(flag.help.empty()) << where;
      EXPECT_FALSE(flag.help.ends_with(".")) << where;
      EXPECT_FALSE(flag.category.empty()) << where;
      EXPECT_EQ(flag.kind == FlagKind::kSwitch, flag.value_name.empty()) << where;
      if (flag.fallback.empty()) continue;
      FlagValues values(spec);
      EXPECT_NO_THROW(values.set(flag, flag.fallback, "test", where)) << "its own default is refused";
    }
  }
}

TEST(Help, ShowsEveryFlagWithinTheWidth) {
  for (const auto& spec : command_specs()) {
    const std::string brief = command_help(spec, false);
    const std::string full = command_help(spec, true);
    for (const auto& flag : spec.flags) {
      EXPECT_THAT(brief, HasSubstr("--" + flag.name)) << spec.name;
      EXPECT_THAT(full, HasSubstr("--" + flag.name)) << spec.name;
    }
    EXPECT_THAT(overview_help(command_specs()), HasSubstr("  " + spec.name));
    for (const auto& line : split(brief, '\n')) EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(Help, ManPageAndCompletionsKnowEveryFlagAndChoice) {
  const std::string man = man_page(command_specs(), "9.8.7");
  const std::string bash = bash_completion(command_specs());
  const std::string zsh = zsh_completion(command_specs());
  EXPECT_THAT(man, HasSubstr("lockstep 9.8.7"));
  for (const auto& spec : command_specs()) {
    for (const auto& flag : spec.flags) {
      EXPECT_THAT(bash, HasSubstr(" --" + flag.name));
      EXPECT_THAT(zsh, HasSubstr("--" + flag.name));
      for (const auto& choice : flag.choices) EXPECT_THAT(bash, HasSubstr(choice));
    }
  }
  EXPECT_THAT(man, HasSubstr("\\-\\-batch\\-size N"));
  for (const auto* name : {"make", "check"}) {
    EXPECT_THAT(man, HasSubstr(text(".SS lockstep data ", name)));
    for (const auto& flag : subcommand_spec("data", name).flags) {
      EXPECT_THAT(man, HasSubstr("\\-\\-" + flag.name));
      EXPECT_THAT(command_help(command_spec("data"), false), HasSubstr("--" + flag.name));
    }
  }
}

}  // namespace
}  // namespace lockstep::config
