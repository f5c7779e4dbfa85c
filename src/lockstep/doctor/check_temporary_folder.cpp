#include <sys/statvfs.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

Result check_temporary_folder(const Machine& machine) {
  const std::string folder = machine.environment("TMPDIR").value_or("/tmp");
  try {
    const TemporaryDirectory probe("lockstep-doctor");
    struct statvfs info {};
    statvfs(probe.path().c_str(), &info);
    return {"", Status::kOk, text(folder, " is writable, ", format_bytes(info.f_bavail * info.f_frsize), " free"), "",
            ""};
  } catch (const Error& error) {
    return {"", Status::kFail, text("no temporary folder can be made in ", folder), error.what(),
            "set TMPDIR to a folder that you may write to"};
  }
}

}  // namespace lockstep::doctor
