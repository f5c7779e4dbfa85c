#include "lockstep/train/device.h"

#include <dlfcn.h>

#include <filesystem>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/host/gpus.h"

namespace lockstep::train {

namespace {

constexpr const char* kCudaLibrary = "libtorch_cuda.so";
constexpr const char* kCpuOnly = "this LibTorch was built for the CPU only (it has no libtorch_cuda.so)";

bool is_missing(const std::string& loader_words) {
  return loader_words.find(text(kCudaLibrary, ": cannot open shared object file")) != std::string::npos;
}

}  // namespace

std::string why_cpu_only() {
  Dl_info torch{};
  std::error_code none;
  if (::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &torch) != 0 && torch.dli_fname != nullptr &&
      std::filesystem::exists(std::filesystem::path(torch.dli_fname).parent_path() / kCudaLibrary, none)) {
    return "";
  }
  if (::dlopen(kCudaLibrary, RTLD_LAZY | RTLD_LOCAL) != nullptr) return "";
  return is_missing(::dlerror()) ? kCpuOnly : "";
}

std::string load_cuda() {
  // RTLD_GLOBAL: its static initialisers register the CUDA kernels with the dispatcher that libtorch_cpu owns.
  // Nothing may ask LibTorch about CUDA before this line: the first answer, hasCUDA() in manual_seed() say, is kept.
  if (::dlopen(kCudaLibrary, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const std::string reason = ::dlerror();
    return is_missing(reason) ? kCpuOnly : text("libtorch_cuda.so does not load: ", reason);
  }
  try {
    if (torch::cuda::is_available()) return "";
    at::globalContext().lazyInitDevice(at::kCUDA);
    return "CUDA finds no usable GPU";
  } catch (const std::exception& error) {
    return text("CUDA finds no usable GPU: ", split(error.what(), '.').front());
  }
}

namespace {

bool has_visible_gpu() {
  const auto environment = process_environment();
  const auto inventory = host::find_gpus(host::GpuSources::of_system(environment));
  return !host::visible_devices(inventory, environment).gpus.empty();
}

}  // namespace

at::Device prepare_device(std::string_view name, int device_index, int world_size) {
  if (name == "cpu") return at::kCPU;
  if (world_size > 1) {
    if (name == "auto") return at::kCPU;
    throw ConfigError(text("device cuda with ", world_size, " ranks needs NCCL, which is not in this version"),
                      "train on one GPU, or on the CPU with --device cpu");
  }
  if (name == "auto" && !has_visible_gpu()) return at::kCPU;
  const std::string reason = load_cuda();
  if (!reason.empty()) {
    if (name == "auto") return at::kCPU;
    throw ConfigError(text("device cuda: ", reason), "`lockstep doctor` says more; --device cpu trains on the CPU");
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device_index));
}

}  // namespace lockstep::train
