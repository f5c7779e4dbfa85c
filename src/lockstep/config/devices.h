#pragma once

#include <string>
#include <vector>

#include "lockstep/config/flags.h"
#include "lockstep/config/resolve.h"

namespace lockstep::config {

/// What --device, --devices and --nproc come to on this machine.
struct DeviceChoice {
  std::string device;        ///< cpu, cuda
  std::string reason;        ///< why `auto` took it; empty when it was asked for
  std::vector<int> devices;  ///< CUDA indices, `nproc` of them; empty on the CPU
  int nproc = 1;
  std::vector<std::string> notes;
};

struct DeviceDefaults {
  int cpu_default = 1;           ///< processes on the CPU when --nproc is not given
  bool one_device_only = false;  ///< every strategy asked for uses one device: --nproc auto is 1
};

/// Throws ConfigError: no usable GPU, more processes than visible GPUs, several GPUs, flags that contradict each other.
DeviceChoice choose_devices(const FlagValues& values, const Machine& machine, const DeviceDefaults& defaults);

}  // namespace lockstep::config
