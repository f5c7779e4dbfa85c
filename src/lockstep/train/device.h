#pragma once

#include <string>
#include <string_view>

#include <c10/core/Device.h>

namespace lockstep::train {

/// Turns "cpu", "cuda" or "auto" into this rank's device and makes it usable. `auto` takes CUDA for a single rank when
/// a GPU is there, else the CPU. libtorch_cuda is loaded here, at run time, so that programs for the CPU start without
/// it and no linker flag can drop it. Throws ConfigError when CUDA was asked for and cannot be had, with the reason.
at::Device prepare_device(std::string_view name, int device_index, int world_size);

/// Why this LibTorch cannot do CUDA at all: "" when it has a CUDA library, whether or not that loads. Quick: a library
/// that lies beside libtorch_cpu is not loaded.
std::string why_cpu_only();

/// Loads libtorch_cuda; must come before anything that asks LibTorch about CUDA (torch::manual_seed does). Returns ""
/// when CUDA is then usable, else the reason why not: a CPU-only LibTorch, a library that does not load (with the
/// loader's words), or no usable GPU (with CUDA's words).
std::string load_cuda();

}  // namespace lockstep::train
