#include "lockstep/host/memory.h"

#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::host {
namespace {

namespace fs = std::filesystem;

/// Value of a line "<key>:   123 kB" in bytes; nullopt when there is none.
std::optional<std::uint64_t> kib_line(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    std::uint64_t kib = 0;
    if (word.size() == key.size() + 1 && word.starts_with(key) && word.back() == ':' && file >> kib) return kib * 1024;
    file.ignore(4096, '\n');
  }
  return std::nullopt;
}

/// The folder of this process's cgroup below `mount` for a v1 controller ("memory") or for v2 (""), as
/// /proc/self/cgroup names it; "/" when it is not named.
std::string cgroup_of_self(const fs::path& root, std::string_view controller) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const auto fields = split(line, ':');
    if (fields.size() < 3) continue;
    for (const std::string& name : split(fields[1], ',')) {
      if (name == controller) return line.substr(fields[0].size() + fields[1].size() + 2);
    }
  }
  return "/";
}

/// Lowers `limit` to the smallest value of `file_name` in `group` and every folder above it, up to `mount`.
/// In a container /proc/self/cgroup may name a folder that only the host sees: what is missing sets no limit.
void apply_limits(const fs::path& mount, fs::path group, const char* file_name, MemoryLimit& limit) {
  group = group.relative_path();
  while (true) {
    const fs::path path = mount / group / file_name;
    std::uint64_t bytes = 0;
    // "max" does not parse: no limit at this level.
    if (std::ifstream(path) >> bytes && bytes < limit.limit_bytes) {
      limit.limit_bytes = bytes;
      limit.source = path.string();
    }
    if (group.empty()) return;
    group = group.parent_path();
  }
}

}  // namespace

std::optional<ProcessMemory> process_memory(pid_t pid) {
  const fs::path status = pid == 0 ? fs::path("/proc/self/status") : fs::path(text("/proc/", pid, "/status"));
  const auto resident = kib_line(status, "VmRSS");
  const auto peak = kib_line(status, "VmHWM");
  if (!resident || !peak) return std::nullopt;
  return ProcessMemory{*resident, *peak};
}

MemoryLimit memory_limit(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const auto total = kib_line(meminfo, "MemTotal");
  if (!total) throw DataError(text(meminfo.string(), " cannot be read or has no MemTotal"));
  MemoryLimit limit{*total, kib_line(meminfo, "MemAvailable").value_or(*total), "the machine"};
  apply_limits(root / "sys/fs/cgroup", cgroup_of_self(root, ""), "memory.max", limit);
  apply_limits(root / "sys/fs/cgroup/memory", cgroup_of_self(root, "memory"), "memory.limit_in_bytes", limit);
  return limit;
}

}  // namespace lockstep::host
