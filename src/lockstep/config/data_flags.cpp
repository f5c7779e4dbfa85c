#include "lockstep/config/data_flags.h"

namespace lockstep::config {

namespace {

CommandSpec make_spec() {
  return {
      .name = "data make",
      .summary = "write a generated data set",
      .usage = "data make cifar10 DIR [--images N] [--seed N] [--json]",
      .description =
          "Writes learnable generated images in CIFAR-10's binary format, for where the real ones cannot "
          "be downloaded. They are not CIFAR-10; the same seed gives the same bytes.",
      .flags = {{.name = "images",
                 .kind = FlagKind::kInteger,
                 .value_name = "N",
                 .low = static_cast<double>(kMinMadeImages),
                 .high = static_cast<double>(kMaxMadeImages),
                 .fallback = "50000",
                 .category = "Images",
                 .help = "training images, in five files; a fifth as many for testing follow"},
                {.name = "seed",
                 .kind = FlagKind::kInteger,
                 .value_name = "N",
                 .low = 0,
                 .high = 9007199254740991.0,
                 .fallback = "0",
                 .category = "Images",
                 .help = "seed of labels, phases, brightness and noise"},
                {.name = "json", .kind = FlagKind::kSwitch, .category = "Output", .help = "print one JSON document"}},
      .examples = {"lockstep data make cifar10 data/cifar10 --images 10000"}};
}

CommandSpec check_spec() {
  return {
      .name = "data check",
      .summary = "read a data set through and say what is in it",
      .usage = "data check SPEC [--json]",
      .description =
          "Reads every file of fashion-mnist[:DIR], mnist:DIR, cifar10:DIR or cifar100:DIR, counts what "
          "is in it and names each problem with its place. Exit code 0: sound, 1: missing or damaged.",
      .flags = {{.name = "json", .kind = FlagKind::kSwitch, .category = "Output", .help = "print one JSON document"}},
      .examples = {"lockstep data check fashion-mnist", "lockstep data check cifar10:data/cifar10"}};
}

}  // namespace

CommandSpec data_spec() {
  return {.name = "data",
          .summary = "make a generated data set, or check one",
          .usage = "data make cifar10 DIR | data check SPEC",
          .description =
              "Writes generated images in CIFAR-10's format, or reads a data set through and says what is in it.",
          .flags = {},
          .rest_name = "make|check",
          .subcommands = {make_spec(), check_spec()}};
}

}  // namespace lockstep::config
