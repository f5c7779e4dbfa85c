#pragma once

#include <filesystem>

#include "lockstep/base/world.h"
#include "lockstep/doctor/probe.h"
#include "lockstep/doctor/run_command.h"
#include "lockstep/host/gpus.h"

namespace lockstep::doctor {

/// Everything that checks look at. Gathered once; tests fill it as they like.
struct Machine {
  EnvironmentReader environment;
  std::filesystem::path root = "/";  ///< stands for "/" where a check reads /proc, /dev or /usr
  std::filesystem::path run_folder;  ///< below which runs are kept
  std::filesystem::path python;      ///< interpreter of the checkout's .venv; need not exist
  host::GpuInventory gpus;           ///< all of the host
  host::VisibleDevices visible;      ///< what CUDA_VISIBLE_DEVICES leaves
  Probe probe;                       ///< LibTorch
  CommandRunner run;                 ///< for versions of programs

  int num_visible_gpus() const { return static_cast<int>(visible.gpus.size()); }
  const host::Gpu& visible_gpu(int cuda_index) const;
};

/// Looks at this machine. `probe` is LibTorch's own answer, `run_folder` where runs will be kept.
Machine inspect_machine(Probe probe, const std::filesystem::path& run_folder);

}  // namespace lockstep::doctor
