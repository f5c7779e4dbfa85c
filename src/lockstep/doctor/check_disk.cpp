#include <sys/statvfs.h>
#include <unistd.h>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

namespace fs = std::filesystem;

constexpr std::uint64_t kScarceBytes = std::uint64_t{2} << 30;
constexpr std::uint64_t kTooLittleBytes = std::uint64_t{50} << 20;

Result check_disk(const Machine& machine) {
  // The folder may not exist yet: look at the nearest one above it that does.
  fs::path folder = fs::absolute(machine.run_folder);
  std::error_code ignored;
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) != 0 || access(folder.c_str(), W_OK | X_OK) != 0) {
    return {"", Status::kFail, text("runs cannot be kept in ", machine.run_folder.string()),
            text(folder.string(), " is not writable"), "pass --run-dir DIR with a folder that you may write to"};
  }
  const std::uint64_t free = info.f_bavail * info.f_frsize;
  Result result{"", Status::kOk, text(format_bytes(free), " free for runs in ", machine.run_folder.string()), "", ""};
  if (free < kScarceBytes) {
    result.status = free < kTooLittleBytes ? Status::kFail : Status::kWarn;
    result.why = "checkpoints of one model fill this quickly; a save that does not fit keeps the older checkpoint";
    result.hint = "make room, pass --run-dir on another disk, or keep fewer checkpoints with --keep";
  }
  return result;
}

}  // namespace lockstep::doctor
