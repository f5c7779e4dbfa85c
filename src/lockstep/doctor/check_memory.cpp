#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/doctor/checks.h"
#include "lockstep/host/memory.h"

namespace lockstep::doctor {

// Two ranks that train the MLP take 0.5 GiB each, LibTorch's libraries included.
constexpr std::uint64_t kWantedBytes = std::uint64_t{2} << 30;

Result check_memory(const Machine& machine) {
  const host::MemoryLimit limit = host::memory_limit(machine.root);
  Result result{"", Status::kOk,
                text(format_bytes(limit.limit_bytes), " usable (limit: ", limit.source, "), ",
                     format_bytes(limit.available_bytes), " available now"),
                "", ""};
  if (std::min(limit.limit_bytes, limit.available_bytes) < kWantedBytes) {
    result.status = Status::kWarn;
    result.why = "a rank takes about 0.5 GiB before any data; the kernel kills a rank that exceeds the limit";
    result.hint = "use fewer processes, or raise the limit (docker run --memory)";
  }
  return result;
}

}  // namespace lockstep::doctor
