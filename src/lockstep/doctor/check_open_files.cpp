#include <sys/resource.h>

#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

// Loaders, pipes and sockets of 8 ranks stay below this; 1024, a common default, is reached (seen with data workers).
constexpr rlim_t kWantedFiles = 4096;

Result check_open_files(const Machine&) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto shown = [](rlim_t value) { return value == RLIM_INFINITY ? std::string("unlimited") : text(value); };
  Result result{"", Status::kOk,
                text("a process may open ", shown(limit.rlim_cur), " files (hard limit ", shown(limit.rlim_max), ")"),
                "", ""};
  if (limit.rlim_cur < kWantedFiles) {
    result.status = Status::kWarn;
    result.why = text("below ", kWantedFiles, " data loading with several processes can run out of descriptors");
    result.hint = limit.rlim_max >= kWantedFiles ? "ulimit -n 4096 in the shell that starts the training"
                                                 : "raise it in /etc/security/limits.conf, or docker run --ulimit "
                                                   "nofile=65536";
  }
  return result;
}

}  // namespace lockstep::doctor
