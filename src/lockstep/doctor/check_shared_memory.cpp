#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

// A guess from segments that users reported (7.3 to 9.6 MB each): one of 10 MB a rank and channel, 4 channels.
constexpr std::uint64_t kSegmentBytes = 10'000'000;
constexpr int kChannels = 4;

/// Names of nccl-* files that no process has mapped: what killed jobs left behind.
std::vector<std::string> stale_segments(const fs::path& root) {
  std::set<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root / "dev/shm", ignored)) {
    if (entry.path().filename().string().starts_with("nccl-")) found.insert(entry.path().filename().string());
  }
  if (found.empty()) return {};
  for (const auto& process : fs::directory_iterator(root / "proc", ignored)) {
    std::ifstream maps(process.path() / "maps");
    std::string line;
    while (std::getline(maps, line)) {
      const auto slash = line.rfind("/dev/shm/");
      if (slash != std::string::npos) found.erase(line.substr(slash + 9));
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace

Result check_shared_memory(const Machine& machine) {
  const fs::path folder = machine.root / "dev/shm";
  const int ranks = machine.num_visible_gpus();
  const std::uint64_t need = ranks > 1 ? static_cast<std::uint64_t>(ranks * kChannels) * kSegmentBytes : 0;
  const std::string purpose =
      need > 0 ? text("; NCCL on ", ranks, " GPUs needs about ", format_bytes(need))
               : std::string("; not needed here: processes on the CPU exchange through anonymous memory");
  const std::string hint = text("docker run --shm-size=", std::max<std::uint64_t>(1, need >> 29),
                                "g (or --ipc=host); outside: mount -o "
                                "remount,size=1G /dev/shm");
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) != 0) {
    return {"", need > 0 ? Status::kFail : Status::kWarn, text("there is no ", folder.string(), purpose),
            "NCCL keeps its exchange buffers there and reports only an unhandled system error", hint};
  }
  const std::uint64_t size = info.f_blocks * info.f_frsize;
  const std::uint64_t free = info.f_bavail * info.f_frsize;
  Result result{"", Status::kOk,
                text(folder.string(), " has ", format_bytes(size), ", ", format_bytes(free), " free", purpose), "", ""};
  if (free < need) {
    result.status = Status::kWarn;
    result.why =
        "64 MiB is Docker's default whatever the memory limit; when it is full, NCCL reports only an "
        "unhandled system error";
    result.hint = hint;
  }
  if (const auto stale = stale_segments(machine.root); !stale.empty()) {
    result.status = Status::kWarn;
    result.why += text(result.why.empty() ? "" : "; ", stale.size(),
                       " file(s) of jobs that are gone fill it: ", join(stale, ", "));
    if (result.hint.empty()) result.hint = text("remove them: rm ", folder.string(), "/nccl-*, when no job runs");
  }
  return result;
}

}  // namespace lockstep::doctor
