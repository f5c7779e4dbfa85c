#pragma once

#include <filesystem>
#include <optional>

namespace lockstep::host {

/// Where the kernel shows the limits of control groups. Tests point these at a folder of their own.
struct CgroupFiles {
  std::filesystem::path membership = "/proc/self/cgroup";
  std::filesystem::path mount = "/sys/fs/cgroup";
};

/// CPUs' worth of time per second that the control groups of this process (version 1 or 2, every ancestor too) allow:
/// the smallest quota / period. nullopt when nothing limits it or nothing is readable.
std::optional<double> cpu_quota(const CgroupFiles& files = {});

/// Number of CPUs in this process's affinity mask.
int affinity_cpus();

/// CPUs that this process may keep busy: the affinity mask, or the whole part of the quota when that is smaller;
/// at least 1. This, not the number of CPUs in the machine, is what threads should be counted by.
int usable_cpus(const CgroupFiles& files = {});

}  // namespace lockstep::host
