#include "lockstep/config/train_flags.h"

#include <algorithm>

namespace lockstep::config {

namespace {

constexpr double kMaxReal = 1e300;

std::vector<Flag> what_to_train() {
  const std::string category = "What to train";
  return {
      {.name = "model",
       .kind = FlagKind::kChoice,
       .value_name = "NAME",
       .choices = {"mlp", "cnn", "resnet18", "resnet50"},
       .file_suffix = ".pt",
       .reserved = {"gpt2"},
       .fallback = "mlp",
       .category = category,
       .help = "the model",
       .details =
           "mlp has the layers 784-128-10; cnn is Conv2d(C,64,3), ReLU, AdaptiveAvgPool, Linear(64,10) with the "
           "data set's channels C. The resnets are torchvision's, with a 3x3 stem for images of 64 pixels or "
           "less. FILE.pt is a TorchScript file, a program: train only files that you trust. The initial weights "
           "depend on --seed and the model only; a file brings its own."},
      {.name = "data",
       .kind = FlagKind::kText,
       .value_name = "SPEC",
       .fallback = "fashion-mnist",
       .category = category,
       .help = "fashion-mnist[:DIR], mnist:DIR, cifar10:DIR, cifar100:DIR, synthetic:CxHxW[:N]",
       .details =
           "Folders hold the original files, gzipped or not. synthetic makes N images (4096 unless given, and 1024 "
           "more for evaluation) from the seed; the label of an image is its index modulo 10."},
      {.name = "epochs",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 1,
       .high = kMaxWholeNumber,
       .fallback = "5",
       .category = category,
       .help = "passes over the data",
       .details = "The run ends at whichever of --epochs and --max-steps comes first."},
      {.name = "max-steps",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 1,
       .high = kMaxWholeNumber,
       .category = category,
       .help = "optimizer steps in total, counted through a resume"},
      {.name = "batch-size",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 1,
       .high = 1 << 20,
       .fallback = "32",
       .category = category,
       .help = "samples a step on each device",
       .details = "The global batch is this times --nproc times --accumulate, for dp too."},
      {.name = "accumulate",
       .kind = FlagKind::kInteger,
       .value_name = "K",
       .low = 1,
       .high = 1 << 16,
       .fallback = "1",
       .category = category,
       .help = "batches whose gradients make one optimizer step"},
      {.name = "drop-last",
       .kind = FlagKind::kSwitch,
       .category = category,
       .help = "drop the sampler's uneven tail and the last short batch"},
      {.name = "seed",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 0,
       .high = kMaxWholeNumber,
       .fallback = "0",
       .category = category,
       .help = "seed of weights, order and synthetic data"},
      {.name = "workers",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 1,
       .high = 256,
       .fallback = "1",
       .category = category,
       .help = "loader threads of each rank"},
      {.name = "init-from",
       .kind = FlagKind::kPath,
       .value_name = "FILE",
       .category = category,
       .help = "start from the weights in this safetensors file"},
      {.name = "dump-final",
       .kind = FlagKind::kPath,
       .value_name = "FILE",
       .category = category,
       .help = "write the final weights to this safetensors file",
       .details = "Parameters and buffers in the training dtype: fp64 gives F64."},
  };
}

std::vector<Flag> where_to_train() {
  const std::string category = "Where to train";
  return {
      {.name = "strategy",
       .kind = FlagKind::kChoice,
       .value_name = "NAME",
       .choices = {"single", "ddp", "dp", "zero1", "zero2"},
       .reserved = {"zero3", "fsdp"},
       .fallback_note = "single; ddp when --nproc is above 1",
       .category = category,
       .help = "how the devices share the work",
       .details =
           "single is one process on one device. ddp is one process a device, gradients averaged while the backward "
           "pass still runs. dp is one process with one thread a device, as DataParallel. zero1 is ddp with the "
           "optimizer's state divided among the ranks; zero2 divides the gradients too."},
      {.name = "strategies",
       .kind = FlagKind::kList,
       .value_name = "LIST",
       .choices = {"single", "dp", "ddp", "zero1", "zero2"},
       .reserved = {"zero3", "fsdp"},
       .fallback = "single,dp,ddp",
       .category = category,
       .help = "what to compare, in this order; the first is what the others are measured against"},
      {.name = "nproc",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 1,
       .high = 1024,
       .choices = {"auto"},
       .fallback_note = "1; compare: all GPUs, or 2 on the CPU",
       .category = category,
       .help = "devices, or processes on the CPU; auto takes what the machine has",
       .details = "On the CPU any number is accepted, and auto is the number of usable CPUs."},
      {.name = "device",
       .kind = FlagKind::kChoice,
       .value_name = "KIND",
       .choices = {"auto", "cpu", "cuda"},
       .fallback = "auto",
       .category = category,
       .help = "auto takes a GPU when there is a usable one",
       .details = "When --nproc is more than the visible GPUs, auto takes the CPU and says so."},
      {.name = "devices",
       .kind = FlagKind::kList,
       .value_name = "LIST",
       .low = 0,
       .high = 1023,
       .category = category,
       .help = "which of the visible GPUs, such as 0,2"},
  };
}

std::vector<Flag> how_to_learn() {
  const std::string category = "How to learn";
  return {
      {.name = "optimizer",
       .kind = FlagKind::kChoice,
       .value_name = "NAME",
       .choices = {"sgd", "adam", "adamw"},
       .fallback = "sgd",
       .category = category,
       .help = "what makes steps out of gradients"},
      {.name = "lr",
       .kind = FlagKind::kReal,
       .value_name = "X",
       .low = 0,
       .high = kMaxReal,
       .fallback = "0.01",
       .category = category,
       .help = "learning rate, before --scale-lr"},
      {.name = "momentum",
       .kind = FlagKind::kReal,
       .value_name = "X",
       .low = 0,
       .high = 1,
       .high_excluded = true,
       .fallback = "0",
       .category = category,
       .help = "momentum of sgd"},
      {.name = "nesterov", .kind = FlagKind::kSwitch, .category = category, .help = "Nesterov's form of --momentum"},
      {.name = "weight-decay",
       .kind = FlagKind::kReal,
       .value_name = "X",
       .low = 0,
       .high = kMaxReal,
       .fallback = "0",
       .category = category,
       .help = "added to the gradient (sgd, adam) or decoupled from it (adamw)"},
      {.name = "scale-lr",
       .kind = FlagKind::kChoice,
       .value_name = "RULE",
       .choices = {"linear", "sqrt", "none"},
       .fallback = "none",
       .category = category,
       .help = "scale the rate with the global batch; base batch 256",
       .details = "linear: lr * global/256. sqrt: lr * sqrt(global/256)."},
      {.name = "warmup-epochs",
       .kind = FlagKind::kReal,
       .value_name = "X",
       .low = 0,
       .high = 1e6,
       .fallback = "0",
       .category = category,
       .help = "the rate rises over so many epochs",
       .details = "The factor at a step is min(1, (step+1) / warm-up steps), on the scaled rate."},
      {.name = "schedule",
       .kind = FlagKind::kChoice,
       .value_name = "NAME",
       .choices = {"constant", "cosine", "step"},
       .fallback = "constant",
       .category = category,
       .help = "how the rate falls",
       .details =
           "cosine: half a cosine from the rate to 0 over the steps after the warm-up. step: a tenth after each third "
           "of the run."},
      {.name = "clip-norm",
       .kind = FlagKind::kReal,
       .value_name = "X",
       .low = 0,
       .high = kMaxReal,
       .low_excluded = true,
       .category = category,
       .help = "scale gradients down to this global L2 norm"},
      {.name = "average",
       .kind = FlagKind::kChoice,
       .value_name = "OVER",
       .choices = {"samples", "ranks"},
       .fallback = "samples",
       .category = category,
       .help = "what the gradient is the mean of",
       .details = "ranks gives the mean of the ranks' means, as Python's DDP does where ranks are uneven."},
      {.name = "precision",
       .kind = FlagKind::kChoice,
       .value_name = "NAME",
       .choices = {"fp64", "fp32", "tf32", "bf16", "fp16"},
       .fallback = "fp32",
       .category = category,
       .help = "number format of weights and arithmetic",
       .details =
           "fp32 means no TF32 anywhere. bf16 and fp16 keep weights in fp32 and compute in the narrow type where "
           "that is safe; fp16 with dynamic loss scaling."},
      {.name = "sync-bn",
       .kind = FlagKind::kSwitch,
       .category = category,
       .help = "batch normalisation over the samples of all ranks",
       .details = "Statistics are taken over all ranks' samples of a step, forward and backward."},
      {.name = "fuse",
       .kind = FlagKind::kChoice,
       .value_name = "WHEN",
       .choices = {"auto", "off"},
       .fallback = "auto",
       .category = category,
       .help = "fused kernels where a model has them"},
      {.name = "deterministic",
       .kind = FlagKind::kSwitch,
       .category = category,
       .help = "the same bits on every run, at some cost in speed"},
      {.name = "strict-nan",
       .kind = FlagKind::kSwitch,
       .category = category,
       .help = "stop at the first non-finite loss instead of the tenth in a row"},
      {.name = "eval-every",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 0,
       .high = kMaxWholeNumber,
       .fallback = "1",
       .category = category,
       .help = "epochs between evaluations, 0 never",
       .details = "Unless it is 0 the end of the run is evaluated too."},
  };
}

std::vector<Flag> run_folder() {
  const std::string category = "Run folder, checkpoints, stopping";
  return {
      {.name = "run-dir",
       .kind = FlagKind::kPath,
       .value_name = "DIR",
       .fallback_note = "runs/<model>-<strategy>-<UTC time>",
       .category = category,
       .help = "where the run's records go",
       .details = "A folder that already holds a run is refused without --resume or --overwrite."},
      {.name = "overwrite",
       .kind = FlagKind::kSwitch,
       .category = category,
       .help = "remove the run that the folder holds and start afresh"},
      {.name = "save-every",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 0,
       .high = kMaxWholeNumber,
       .fallback = "0",
       .category = category,
       .help = "epochs between checkpoints, 0 never"},
      {.name = "save-steps",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 0,
       .high = kMaxWholeNumber,
       .fallback = "0",
       .category = category,
       .help = "steps between checkpoints, 0 never"},
      {.name = "keep",
       .kind = FlagKind::kInteger,
       .value_name = "K",
       .low = 0,
       .high = kMaxWholeNumber,
       .fallback = "0",
       .category = category,
       .help = "newest checkpoints to keep, 0 all"},
      {.name = "resume",
       .kind = FlagKind::kText,
       .value_name = "auto|none|PATH",
       .fallback = "none",
       .category = category,
       .help = "go on from the newest complete checkpoint, or from this one",
       .details =
           "auto starts afresh when there is none; without --run-dir it looks at the newest run of the same model "
           "and strategy. PATH is a checkpoint's folder or a run's."},
      {.name = "stop-after",
       .kind = FlagKind::kDuration,
       .value_name = "TIME",
       .low_excluded = true,
       .category = category,
       .help = "save and end with exit 0 after this time"},
      {.name = "grace",
       .kind = FlagKind::kDuration,
       .value_name = "TIME",
       .fallback_note = "1s after a failure, 30s after a stop request",
       .category = category,
       .help = "time between asking processes to stop and killing them"},
      {.name = "log-every",
       .kind = FlagKind::kInteger,
       .value_name = "N",
       .low = 1,
       .high = kMaxWholeNumber,
       .fallback = "50",
       .category = category,
       .help = "steps between step events"},
  };
}

std::vector<Flag> output() {
  const std::string category = "Output";
  return {
      {.name = "progress",
       .kind = FlagKind::kChoice,
       .value_name = "WHEN",
       .choices = {"auto", "on", "off"},
       .fallback = "auto",
       .category = category,
       .help = "progress bar; auto shows it on a terminal"},
      {.name = "json",
       .kind = FlagKind::kSwitch,
       .category = category,
       .help = "one JSON document on standard output, all else on standard error"},
      {.name = "price-per-hour",
       .kind = FlagKind::kReal,
       .value_name = "X",
       .low = 0,
       .high = 1e9,
       .category = category,
       .help = "price of the machine, for the cost of an epoch and of the run"},
      {.name = "currency",
       .kind = FlagKind::kText,
       .value_name = "C",
       .fallback = "USD",
       .category = category,
       .help = "currency of --price-per-hour"},
      {.name = "config",
       .kind = FlagKind::kPath,
       .value_name = "FILE",
       .category = category,
       .help = "TOML file with the same names as the flags; a flag wins over it"},
  };
}

std::vector<Flag> all_flags() {
  std::vector<Flag> flags;
  for (const auto& part : {what_to_train(), where_to_train(), how_to_learn(), run_folder(), output()}) {
    flags.insert(flags.end(), part.begin(), part.end());
  }
  return flags;
}

std::vector<Flag> without(const std::vector<std::string>& names) {
  std::vector<Flag> flags = all_flags();
  std::erase_if(flags,
                [&](const Flag& flag) { return std::find(names.begin(), names.end(), flag.name) != names.end(); });
  return flags;
}

}  // namespace

CommandSpec train_spec() {
  return {
      .name = "train",
      .summary = "train a built-in model on one or many devices",
      .usage = "train [FLAGS]",
      .description =
          "Trains --model on --data with --strategy and keeps plan, events, logs and checkpoints in the run "
          "folder. Exit code: 0 trained or stopped as asked, 1 training diverged, 2 usage or environment "
          "error and nothing started, otherwise the code of the first rank that failed or 128 plus the "
          "signal's number.",
      .flags = without({"strategies"}),
      .examples = {"lockstep train --model mlp --nproc 2",
                   "lockstep train --model cnn --data cifar10:data/cifar10 --batch-size 64 --lr 0.1 --scale-lr linear",
                   "lockstep train --config mlp.toml --run-dir runs/mlp --save-every 2 --resume auto"}};
}

CommandSpec compare_spec() {
  return {.name = "compare",
          .summary = "train the same model with several strategies and print the table",
          .usage = "compare [FLAGS]",
          .description =
              "Runs the same training once for each of --strategies, one after the other, and prints seconds an "
              "epoch, final loss, accuracy, images a second, peak memory of each device, speed-up and cost. "
              "Each run has its folder <run-dir>/<strategy>. A strategy that fails has a row that says so; the "
              "exit code is then that of the first that failed.",
          .flags = without({"strategy", "resume", "dump-final"}),
          .examples = {"lockstep compare --model mlp --nproc 2 --epochs 3",
                       "lockstep compare --strategies single,ddp --model cnn --price-per-hour 0.6 --json"}};
}

}  // namespace lockstep::config
