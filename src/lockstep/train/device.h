#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

namespace lockstep::train {

/// Turns "cpu", "cuda" or "auto" into this rank's device, makes it usable and makes it the calling thread's current
/// one. `auto` takes CUDA when there is a GPU for each of the host's ranks, else the CPU. libtorch_cuda is loaded here,
/// at run time, so that programs for the CPU start without it and no linker flag can drop it. Where `auto` sees a GPU
/// and cannot use it, a warning says why. Throws ConfigError when CUDA was asked for and cannot be had, with the
/// reason.
at::Device prepare_device(std::string_view name, int device_index, int ranks_on_host);

/// The CUDA part of the LibTorch in this process: libtorch_cuda.so beside the loaded libtorch_cpu.so, loaded or not.
/// Empty when there is none: a LibTorch for the CPU only.
std::filesystem::path cuda_library();
/// Why this LibTorch cannot do CUDA at all: "" when it has a CUDA part, whether or not that loads.
std::string why_cpu_only();

/// Loads libtorch_cuda; must come before anything that asks LibTorch about CUDA (torch::manual_seed does). Returns ""
/// when CUDA is then usable, else the reason why not: a CPU-only LibTorch, a library that does not load (with the
/// loader's words), a question that came too early, or no usable GPU (with CUDA's words). Once it is loaded it stays.
std::string load_cuda();

}  // namespace lockstep::train
