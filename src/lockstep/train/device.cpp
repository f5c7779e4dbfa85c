#include "lockstep/train/device.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <typeinfo>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/host/gpus.h"
#include "lockstep/host/loaded_objects.h"

namespace lockstep::train {

std::filesystem::path cuda_library() {
  for (const auto& object : host::loaded_objects()) {
    if (object.filename() != "libtorch_cpu.so") continue;
    const auto library = object.parent_path() / "libtorch_cuda.so";
    std::error_code none;
    return std::filesystem::exists(library, none) ? library : std::filesystem::path();
  }
  return {};
}

std::string why_cpu_only() {
  return cuda_library().empty() ? "this LibTorch was built for the CPU only (it has no libtorch_cuda.so)" : "";
}

std::string load_cuda() {
  const auto library = cuda_library();
  if (library.empty()) return why_cpu_only();
  // By its path: by name, the loader would look in the run path of whatever object this function was linked into.
  // RTLD_GLOBAL: its static initialisers register the CUDA kernels with the dispatcher that libtorch_cpu owns.
  // Nothing may ask LibTorch about CUDA before this line: the first answer, hasCUDA() in manual_seed() say, is kept.
  if (::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return text("libtorch_cuda.so does not load: ", ::dlerror());
  }
  if (typeid(at::detail::getCUDAHooks()) == typeid(at::CUDAHooksInterface)) {
    return "LibTorch was asked about CUDA before libtorch_cuda.so was loaded, and keeps its first answer: ask within "
           "lockstep::main, or call lockstep::train::load_cuda() first";
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

int num_visible_gpus() {
  const auto environment = process_environment();
  const auto inventory = host::find_gpus(host::GpuSources::of_system(environment));
  return static_cast<int>(host::visible_devices(inventory, environment).gpus.size());
}

}  // namespace

at::Device prepare_device(std::string_view name, int device_index, int ranks_on_host) {
  if (name == "cpu") return at::kCPU;
  if (name == "auto" && num_visible_gpus() < ranks_on_host) return at::kCPU;
  const std::string reason = load_cuda();
  if (!reason.empty()) {
    if (name == "auto") {
      log::warning(text("this machine has a GPU, but the CPU is used: ", reason, "; `lockstep doctor` says more"));
      return at::kCPU;
    }
    throw ConfigError(text("device cuda: ", reason), "`lockstep doctor` says more; --device cpu trains on the CPU");
  }
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(device_index));
  const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
  if (device_index >= cuda.deviceCount()) {
    throw ConfigError(text("this rank is to use GPU ", device_index, ", and ", static_cast<int>(cuda.deviceCount()),
                           " are visible, counted from 0"),
                      "start as many ranks as there are GPUs; CUDA_VISIBLE_DEVICES says which are visible");
  }
  cuda.setDevice(device);
  return device;
}

}  // namespace lockstep::train
