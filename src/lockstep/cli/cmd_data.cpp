#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/table.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/commands.h"
#include "lockstep/config/command_specs.h"
#include "lockstep/config/data_flags.h"
#include "lockstep/config/help.h"
#include "lockstep/formats/cifar.h"
#include "lockstep/formats/image_set.h"

namespace lockstep::cli {

using config::CommandSpec;
using config::FlagKind;
using config::FlagValues;
using nlohmann::ordered_json;

namespace {

constexpr const char* kSubcommands = "make cifar10 DIR, check SPEC";

static_assert(config::kMinMadeImages == formats::kMinGeneratedImages);
static_assert(config::kMaxMadeImages == formats::kMaxGeneratedImages);

struct Parsed {
  std::vector<std::string> words;
  FlagValues values;
};

// Words and flags may come in any order: the words are taken out, the rest is parsed as flags.
Parsed parse(const CommandSpec& spec, const Arguments& args) {
  Parsed parsed{{}, FlagValues(spec)};
  std::vector<std::string> flags;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (!args[i].starts_with("-")) {
      parsed.words.push_back(args[i]);
      continue;
    }
    flags.push_back(args[i]);
    const auto* flag = args[i].starts_with("--") ? spec.find(args[i].substr(2)) : nullptr;
    if (flag != nullptr && flag->kind != FlagKind::kSwitch && i + 1 < args.size()) flags.push_back(args[++i]);
  }
  parsed.values = config::parse_flags(spec, flags);
  return parsed;
}

void print(const std::string& words) {
  std::fputs(words.c_str(), stdout);
}

[[noreturn]] void refuse_words(const CommandSpec& spec, std::string_view what) {
  throw ConfigError(text("lockstep ", spec.name, ": ", what), text("usage: lockstep ", spec.usage));
}

int make(const Arguments& args) {
  const CommandSpec& spec = config::subcommand_spec("data", "make");
  const auto [words, values] = parse(spec, args);
  if (values.help_requested) {
    print(config::command_help(spec, true));
    return 0;
  }
  if (words.empty() || words[0] != "cifar10") {
    refuse_words(spec, text("expected cifar10", words.empty() ? "" : text(", not '", words[0], "'")));
  }
  if (words.size() != 2) refuse_words(spec, text("expected one folder, got ", words.size() - 1));
  const auto made =
      formats::make_cifar10(words[1], values.integer("images"), static_cast<std::uint64_t>(values.integer("seed")));
  if (values.enabled("json")) {
    ordered_json document{{"schema", "lockstep.data-make/1"}, {"folder", words[1]},
                          {"seed", values.integer("seed")},   {"train_images", made.train_images},
                          {"eval_images", made.test_images},  {"files", ordered_json::array()}};
    for (const auto& file : made.files) {
      document["files"].push_back(ordered_json{{"name", file.name}, {"images", file.images}, {"sha256", file.sha256}});
    }
    print(document.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
    return 0;
  }
  Table table{.columns = {{"file"}, {"images", Table::Align::kRight}, {"sha256"}}, .rows = {}};
  for (const auto& file : made.files) {
    table.rows.push_back({file.name, format_count(static_cast<std::uint64_t>(file.images)), file.sha256});
  }
  print(table.to_string());
  print(text("Generated images, not CIFAR-10. Train on them with --data cifar10:", words[1], "\n"));
  return 0;
}

struct SplitReport {
  const char* name;
  std::optional<formats::ImageSet> set;
  std::string problem;  ///< empty when `set` holds
};

SplitReport check_split(const formats::ImageSetSpec& spec, formats::Split split, const char* name) {
  try {
    return {name, formats::read_image_set(spec, split), {}};
  } catch (const DataError& error) {
    return {name, std::nullopt, error.what()};
  }
}

std::vector<std::int64_t> images_per_class(const formats::ImageSet& set) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(set.num_classes));
  for (const auto label : set.labels) ++counts[label];
  return counts;
}

ordered_json to_json(const SplitReport& report) {
  const formats::ImageSet& set = *report.set;
  return {{"split", report.name},
          {"images", set.count},
          {"shape", {set.shape.channels, set.shape.height, set.shape.width}},
          {"num_classes", set.num_classes},
          {"images_per_class", images_per_class(set)}};
}

std::vector<std::string> to_row(const SplitReport& report) {
  const formats::ImageSet& set = *report.set;
  const auto counts = images_per_class(set);
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  return {report.name, format_count(static_cast<std::uint64_t>(set.count)),
          text(set.shape.channels, 'x', set.shape.height, 'x', set.shape.width), text(set.num_classes),
          text(*least, " to ", *most)};
}

std::vector<std::string> problems_of(const std::vector<SplitReport>& reports) {
  std::vector<std::string> problems;
  for (const auto& report : reports) {
    const bool known = std::find(problems.begin(), problems.end(), report.problem) != problems.end();
    if (!report.problem.empty() && !known) problems.push_back(report.problem);
  }
  const auto& train = reports[0].set;
  const auto& eval = reports[1].set;
  if (train && eval && (train->shape.height != eval->shape.height || train->shape.width != eval->shape.width)) {
    problems.push_back(text("training images are ", train->shape.height, "x", train->shape.width,
                            ", evaluation images ", eval->shape.height, "x", eval->shape.width));
  }
  return problems;
}

int check(const Arguments& args) {
  const CommandSpec& command = config::subcommand_spec("data", "check");
  const auto [words, values] = parse(command, args);
  if (values.help_requested) {
    print(config::command_help(command, true));
    return 0;
  }
  if (words.size() != 1) refuse_words(command, text("expected one data set, got ", words.size()));
  const auto spec = formats::parse_image_set_spec(words[0]);
  if (spec.kind == formats::ImageSetKind::kSynthetic) refuse_words(command, "a synthetic data set has no files");

  const std::vector<SplitReport> reports{check_split(spec, formats::Split::kTrain, "train"),
                                         check_split(spec, formats::Split::kEval, "eval")};
  const auto problems = problems_of(reports);
  if (values.enabled("json")) {
    ordered_json document{{"schema", "lockstep.data-check/1"},
                          {"data", words[0]},
                          {"folder", spec.folder.string()},
                          {"splits", ordered_json::array()},
                          {"problems", problems}};
    for (const auto& report : reports) {
      if (report.set) document["splits"].push_back(to_json(report));
    }
    print(document.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
  } else {
    using Align = Table::Align;
    Table table{.columns = {{"split"},
                            {"images", Align::kRight},
                            {"shape"},
                            {"classes", Align::kRight},
                            {"images a class", Align::kRight}},
                .rows = {}};
    for (const auto& report : reports) {
      if (report.set) table.rows.push_back(to_row(report));
    }
    print(text(spec.name, " in ", spec.folder.string(), "\n"));
    if (!table.rows.empty()) print(table.to_string());
    for (const auto& problem : problems) print(text("problem: ", problem, "\n"));
    print(problems.empty() ? "no problem found\n" : "");
  }
  return problems.empty() ? 0 : 1;
}

}  // namespace

int cmd_data(const Arguments& args) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    print(config::command_help(config::command_spec("data"), false));
    return 0;
  }
  const std::string name = args.empty() ? "" : args[0];
  if (name == "make") return make({args.begin() + 1, args.end()});
  if (name == "check") return check({args.begin() + 1, args.end()});
  const std::string what =
      name.empty() ? "expected a sub-command" : config::unknown_name("sub-command", name, {"make", "check"});
  throw ConfigError(text("lockstep data: ", what), text("this version has: ", kSubcommands));
}

}  // namespace lockstep::cli
