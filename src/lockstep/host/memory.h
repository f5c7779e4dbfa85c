#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::host {

/// Resident memory of one process, shared pages included.
struct ProcessMemory {
  std::uint64_t resident_bytes = 0;
  std::uint64_t peak_resident_bytes = 0;  ///< since the process started (or since its last exec)
};

/// Reads /proc/<pid>/status; `pid` 0 is this process. nullopt when the process is gone or is a zombie.
std::optional<ProcessMemory> process_memory(pid_t pid = 0);

/// How much memory processes here may use together.
struct MemoryLimit {
  std::uint64_t limit_bytes = 0;      ///< the smaller of the machine's memory and the cgroup's limits
  std::uint64_t available_bytes = 0;  ///< of the machine, without swapping (MemAvailable)
  std::string source;                 ///< "the machine", or the cgroup file that sets the limit
};

/// cgroup v1 and v2, every level from this process's group upwards. `root` stands for "/" in tests.
/// Throws DataError when /proc/meminfo cannot be read.
MemoryLimit memory_limit(const std::filesystem::path& root = "/");

}  // namespace lockstep::host
