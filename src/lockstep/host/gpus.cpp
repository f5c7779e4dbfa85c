#include "lockstep/host/gpus.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>

#include "lockstep/base/text.h"

namespace lockstep::host {
namespace {

namespace fs = std::filesystem;

// NVML's documented return codes that have a cause of their own.
enum NvmlReturn : int {
  kNvmlSuccess = 0,
  kNvmlNoPermission = 4,
  kNvmlDriverNotLoaded = 9,
  kNvmlGpuIsLost = 15,
  kNvmlVersionMismatch = 18,
};

struct NvmlMemory {
  unsigned long long total, free, used;
};
using NvmlDevice = struct NvmlDeviceOpaque*;

/// NVML, loaded by name: the build needs no header of it and the program runs where it is missing.
class Nvml {
 public:
  explicit Nvml(const std::string& library) : handle_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) {
      const char* message = dlerror();
      failure_ = message ? message : "unknown reason";
      return;
    }
    load(init, "nvmlInit_v2");
    load(shutdown, "nvmlShutdown");
    load(error_string, "nvmlErrorString");
    load(driver_version, "nvmlSystemGetDriverVersion");
    load(cuda_version, "nvmlSystemGetCudaDriverVersion_v2");
    load(count, "nvmlDeviceGetCount_v2");
    load(device, "nvmlDeviceGetHandleByIndex_v2");
    load(name, "nvmlDeviceGetName");
    load(uuid, "nvmlDeviceGetUUID");
    load(memory, "nvmlDeviceGetMemoryInfo");
    load(capability, "nvmlDeviceGetCudaComputeCapability");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (handle_) dlclose(handle_);
  }

  /// Why it cannot be used; empty when it can.
  const std::string& failure() const { return failure_; }

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*cuda_version)(int*) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, NvmlDevice*) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*capability)(NvmlDevice, int*, int*) = nullptr;

 private:
  template <typename Function>
  void load(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(handle_, symbol));
    if (!function && failure_.empty()) failure_ = text("it has no ", symbol, ", so it is too old or not NVML");
  }

  void* handle_;
  std::string failure_;
};

bool has_entry(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// "580.65.06" out of the driver's own /proc file; empty without one.
std::string loaded_driver_version(const fs::path& driver_file) {
  std::ifstream file(driver_file);
  std::string word;
  while (file >> word) {
    const auto is_part = [](char c) { return c == '.' || (c >= '0' && c <= '9'); };
    if (word.size() >= 5 && word.find('.') == 3 && std::all_of(word.begin(), word.end(), is_part)) return word;
  }
  return {};
}

/// Number of NVIDIA display or 3D controllers on the PCI bus: seen without any driver.
int count_pci_gpus(const fs::path& pci_folder) {
  int found = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(pci_folder, ignored)) {
    std::string vendor, device_class;
    std::ifstream(entry.path() / "vendor") >> vendor;
    std::ifstream(entry.path() / "class") >> device_class;
    if (vendor == "0x10de" && device_class.starts_with("0x03")) ++found;
  }
  return found;
}

void explain_missing_library(GpuInventory& inventory, const GpuSources& sources, const std::string& failure) {
  const std::string loaded = loaded_driver_version(sources.driver_file);
  if (!loaded.empty()) {
    inventory.driver_version = loaded;
    inventory.why_none = text("the NVIDIA driver ", loaded, " is loaded, but its library cannot be used: ", failure);
    inventory.hint = sources.in_container
                         ? "start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
                         : text("install the driver's user libraries of the same version, ", loaded);
    return;
  }
  const int on_bus = count_pci_gpus(sources.pci_folder);
  if (on_bus > 0) {
    inventory.why_none = text(on_bus, " NVIDIA GPU(s) are on the PCI bus, but no driver is loaded");
    inventory.hint = "install NVIDIA's driver (on Debian: nvidia-driver, on Ubuntu: ubuntu-drivers install) and reboot";
    return;
  }
  inventory.why_none = "no NVIDIA driver is loaded and no NVIDIA GPU is on the PCI bus";
  inventory.hint =
      sources.in_container ? "if the host has GPUs, start the container with --gpus all" : "training uses the CPU here";
}

void explain_failed_init(GpuInventory& inventory, const GpuSources& sources, int code, const char* message) {
  inventory.driver_version = loaded_driver_version(sources.driver_file);
  const bool has_nodes = has_entry(sources.device_folder / "nvidiactl");
  switch (code) {
    case kNvmlVersionMismatch:
      inventory.why_none = text("the driver's library does not fit the loaded kernel module",
                                inventory.driver_version.empty() ? "" : text(" ", inventory.driver_version),
                                ": the driver was updated while it was running");
      inventory.hint = "reboot, or unload and load the kernel module; in a container, restart the container";
      return;
    case kNvmlNoPermission:
      inventory.why_none = "this user may not open /dev/nvidia*";
      inventory.hint = "look at ls -l /dev/nvidia*; the user may have to join the group video or render";
      return;
    case kNvmlGpuIsLost:
      inventory.why_none = "a GPU has fallen off the bus";
      inventory.hint = "look for 'Xid 79' in dmesg; a reboot or a reseat of the card is needed";
      return;
    default:
      inventory.why_none =
          text("the NVIDIA library is there but does not start: ", message, " (NVML error ", code, ")");
      if (code == kNvmlDriverNotLoaded && !has_nodes) {
        inventory.why_none += text("; there is no ", (sources.device_folder / "nvidiactl").string());
      }
      inventory.hint = sources.in_container ? "start the container with --gpus all (or give it /dev/nvidia*)"
                                            : "load the driver: modprobe nvidia; then nvidia-smi must list the cards";
  }
}

std::string describe(const Nvml& nvml, unsigned index, Gpu& gpu) {
  NvmlDevice device = nullptr;
  std::array<char, 96> buffer{};
  if (const int code = nvml.device(index, &device); code != kNvmlSuccess) return nvml.error_string(code);
  if (const int code = nvml.name(device, buffer.data(), buffer.size()); code != kNvmlSuccess)
    return nvml.error_string(code);
  gpu.name = buffer.data();
  if (const int code = nvml.uuid(device, buffer.data(), buffer.size()); code != kNvmlSuccess)
    return nvml.error_string(code);
  gpu.uuid = buffer.data();
  if (const int code = nvml.capability(device, &gpu.capability_major, &gpu.capability_minor); code != kNvmlSuccess)
    return nvml.error_string(code);
  // Unsupported on cards that share the host's memory: sizes stay 0, which readers show as unknown.
  NvmlMemory memory{};
  if (nvml.memory(device, &memory) == kNvmlSuccess) {
    gpu.memory_total_bytes = memory.total;
    gpu.memory_used_bytes = memory.used;
  }
  return {};
}

void ask_devices(const Nvml& nvml, GpuInventory& inventory) {
  std::array<char, 96> version{};
  if (nvml.driver_version(version.data(), version.size()) == kNvmlSuccess) inventory.driver_version = version.data();
  int cuda = 0;
  if (nvml.cuda_version(&cuda) == kNvmlSuccess) {
    inventory.driver_cuda_version = text(cuda / 1000, '.', cuda % 1000 / 10);
  }
  unsigned count = 0;
  if (const int code = nvml.count(&count); code != kNvmlSuccess) {
    inventory.why_none = text("the driver does not count its GPUs: ", nvml.error_string(code));
  }
  for (unsigned index = 0; index < count; ++index) {
    Gpu gpu;
    gpu.index = static_cast<int>(index);
    const std::string problem = describe(nvml, index, gpu);
    if (problem.empty()) {
      inventory.gpus.push_back(std::move(gpu));
    } else {
      inventory.problems.push_back(text("GPU ", index, ": ", problem));
    }
  }
  if (inventory.gpus.empty() && inventory.why_none.empty()) {
    inventory.why_none =
        text("the driver ", inventory.driver_version, " is loaded but ",
             count == 0 ? "shows no GPU" : "can describe none of its GPUs: ", join(inventory.problems, "; "));
    inventory.hint = "nvidia-smi -L must list the cards; in a container, give it the devices (--gpus all)";
  }
}

/// Position of the GPU that `entry` names, or nullopt.
std::optional<int> match(const std::vector<Gpu>& gpus, std::string_view entry) {
  long long index = 0;
  if (parse_number(entry, index)) {
    if (index < 0 || index >= static_cast<long long>(gpus.size())) return std::nullopt;
    return static_cast<int>(index);
  }
  if (!entry.starts_with("GPU-")) return std::nullopt;
  std::optional<int> found;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (!std::string_view(gpus[i].uuid).starts_with(entry)) continue;
    if (found) return std::nullopt;
    found = static_cast<int>(i);
  }
  return found;
}

}  // namespace

std::string Gpu::capability() const {
  return text(capability_major, '.', capability_minor);
}

GpuSources GpuSources::of_system(const EnvironmentReader& environment) {
  GpuSources sources;
  if (const auto library = environment("LOCKSTEP_NVML_LIBRARY"); library && !library->empty()) {
    sources.nvml = *library;
  }
  sources.in_container =
      has_entry("/.dockerenv") || has_entry("/run/.containerenv") || environment("KUBERNETES_SERVICE_HOST").has_value();
  return sources;
}

GpuInventory find_gpus(const GpuSources& sources) {
  GpuInventory inventory;
  const Nvml nvml(sources.nvml);
  if (!nvml.failure().empty()) {
    explain_missing_library(inventory, sources, nvml.failure());
    return inventory;
  }
  if (const int code = nvml.init(); code != kNvmlSuccess) {
    explain_failed_init(inventory, sources, code, nvml.error_string(code));
    return inventory;
  }
  ask_devices(nvml, inventory);
  nvml.shutdown();
  return inventory;
}

VisibleDevices visible_devices(const GpuInventory& inventory, const EnvironmentReader& environment) {
  VisibleDevices visible;
  const auto& gpus = inventory.gpus;
  const auto value = environment("CUDA_VISIBLE_DEVICES");
  const bool cards_differ =
      std::any_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.name != gpus.front().name; });
  const bool by_bus = environment("CUDA_DEVICE_ORDER").value_or("") == "PCI_BUS_ID";
  visible.order_is_sure = !cards_differ || by_bus;
  if (!value) {
    for (std::size_t i = 0; i < gpus.size(); ++i) visible.gpus.push_back(static_cast<int>(i));
    return visible;
  }
  visible.is_limited = true;
  visible.value = *value;
  if (trim(*value).empty()) {
    visible.problem = "it is set to nothing, which hides every GPU";
    return visible;
  }
  for (const std::string& part : split(*value, ',')) {
    const std::string_view entry = trim(part);
    const auto position = match(gpus, entry);
    if (!position) {
      visible.problem = text("'", entry, "' names none of the ", gpus.size(), " GPU(s)",
                             entry.starts_with("MIG-") ? " (MIG slices are not supported)" : "",
                             "; CUDA ignores it and everything after it");
      return visible;
    }
    if (std::find(visible.gpus.begin(), visible.gpus.end(), *position) != visible.gpus.end()) {
      visible.problem = text("'", entry, "' names a GPU a second time, for which CUDA shows none at all");
      visible.gpus.clear();
      return visible;
    }
    visible.gpus.push_back(*position);
  }
  return visible;
}

Bf16Support bf16_support(int capability_major) {
  if (capability_major >= 8) return Bf16Support::kNative;
  return capability_major >= 5 ? Bf16Support::kEmulated : Bf16Support::kNone;
}

}  // namespace lockstep::host
