#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/world.h"

namespace lockstep::host {

/// One NVIDIA GPU as the driver shows it, whatever CUDA_VISIBLE_DEVICES says.
struct Gpu {
  int index = 0;  ///< NVML's index: PCI bus order
  std::string name;
  std::string uuid;  ///< "GPU-..."
  std::uint64_t memory_total_bytes = 0;
  std::uint64_t memory_used_bytes = 0;  ///< by all processes
  int capability_major = 0;             ///< compute capability 9.0: 9 and 0
  int capability_minor = 0;

  std::string capability() const;  ///< "9.0"
};

/// The GPUs of this host, or why there are none.
struct GpuInventory {
  std::vector<Gpu> gpus;
  std::string driver_version;         ///< "580.65.06"; empty without a driver
  std::string driver_cuda_version;    ///< newest CUDA that the driver serves, "13.0"; empty when unknown
  std::string why_none;               ///< empty when there are GPUs
  std::string hint;                   ///< the next step when there are none
  std::vector<std::string> problems;  ///< GPUs that the driver counts but cannot describe, with its reason
};

/// Where to look; the members are variables only so that tests can point elsewhere.
struct GpuSources {
  std::string nvml = "libnvidia-ml.so.1";  ///< NVML, the part of the driver that answers
  std::filesystem::path driver_file = "/proc/driver/nvidia/version";
  std::filesystem::path device_folder = "/dev";
  std::filesystem::path pci_folder = "/sys/bus/pci/devices";
  bool in_container = false;

  /// The system's own places. LOCKSTEP_NVML_LIBRARY, if set, names another NVML.
  static GpuSources of_system(const EnvironmentReader& environment);
};

/// Asks NVML, which is loaded for the call and unloaded after it. Takes about 20 ms with a driver. Never throws for a
/// missing or failing driver: the reason is in the result.
GpuInventory find_gpus(const GpuSources& sources);

/// What CUDA_VISIBLE_DEVICES leaves of an inventory, by CUDA's own rules.
struct VisibleDevices {
  bool is_limited = false;  ///< the variable is set
  std::string value;        ///< as it is set
  std::vector<int> gpus;    ///< positions in GpuInventory::gpus, in CUDA's order: entry i is CUDA device i
  std::string problem;      ///< what CUDA will drop silently, in words; empty when nothing
  bool order_is_sure =
      true;  ///< false: cards differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so indices may mean others
};

/// CUDA's rules: indices or UUIDs (a unique beginning is enough) between commas; the first entry that matches nothing
/// ends the list; a card named twice, or an empty value, leaves none.
VisibleDevices visible_devices(const GpuInventory& inventory, const EnvironmentReader& environment);

/// How bf16 runs on a compute capability: in hardware from 8.0 on; below, by conversion to fp32 and back, which is slow
/// and lacks some convolutions; below 5.0 LibTorch has no kernels at all.
enum class Bf16Support { kNative, kEmulated, kNone };
Bf16Support bf16_support(int capability_major);

}  // namespace lockstep::host
