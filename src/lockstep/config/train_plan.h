#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::config {

/// Everything that `lockstep train` needs to know, resolved: no "auto", no missing default. Field by field the flags of
/// the same name (docs/reference). Stored as plan.json in the run folder and read by the ranks.
struct TrainPlan {
  std::string model;  ///< mlp, cnn, resnet18, resnet50, or the path of a TorchScript file
  std::string
      data;  ///< specification as typed: fashion-mnist[:DIR], mnist:DIR, cifar10:DIR, cifar100:DIR, synthetic:CxHxW[:N]
  std::string strategy = "single";  ///< single, ddp, dp, zero1, zero2
  int nproc = 1;                    ///< devices or processes
  std::string device = "cpu";       ///< cpu, cuda
  std::string device_reason;        ///< why `auto` chose it; empty when it was asked for
  std::vector<int> devices;         ///< CUDA indices; empty on the CPU

  std::int64_t batch_size = 32;  ///< per device and micro-batch
  int accumulate = 1;
  std::int64_t epochs = 5;
  std::optional<std::int64_t> max_steps;  ///< optimizer steps in total, counted through a resume

  std::string optimizer = "sgd";  ///< sgd, adam, adamw
  double lr = 0.01;               ///< as asked; the scaled rate is scaled_lr()
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  std::string scale_lr = "none";  ///< linear, sqrt, none; base batch 256
  double warmup_epochs = 0;
  std::string schedule = "constant";  ///< constant, cosine, step
  std::optional<double> clip_norm;
  std::string precision = "fp32";  ///< fp64, fp32, tf32, bf16, fp16
  bool sync_bn = false;
  std::string average = "samples";  ///< samples, ranks
  std::string fuse = "auto";        ///< auto, off
  bool deterministic = false;
  bool strict_nan = false;

  std::uint64_t seed = 0;
  bool drop_last = false;
  int workers = 1;  ///< loader threads a rank

  std::filesystem::path run_dir;
  std::int64_t save_every = 0;  ///< epochs, 0 never
  std::int64_t save_steps = 0;  ///< steps, 0 never
  std::int64_t keep = 0;        ///< newest checkpoints kept, 0 all
  std::string resume = "none";  ///< none, auto (the newest good one of run_dir), or a checkpoint folder
  std::int64_t log_every = 50;  ///< steps between step events
  std::int64_t eval_every = 1;  ///< epochs, 0 never
  std::optional<std::chrono::milliseconds> stop_after;
  std::optional<std::filesystem::path> init_from;
  std::optional<std::filesystem::path> dump_final;
  std::optional<double> price_per_hour;
  std::string currency = "USD";

  /// Processes that train; under dp and single it is one, with a thread a device.
  int num_processes() const { return strategy == "single" || strategy == "dp" ? 1 : nproc; }
  std::int64_t global_batch() const { return batch_size * nproc * accumulate; }
  /// lr scaled by `scale_lr`: linear lr * global/256, sqrt lr * sqrt(global/256).
  double scaled_lr() const;
};

void to_json(nlohmann::json& json, const TrainPlan& plan);
/// Throws ConfigError that names the field when one is missing or of the wrong type.
TrainPlan train_plan_from_json(const nlohmann::json& json);

}  // namespace lockstep::config
