#include "lockstep/comm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace lockstep::comm {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

int with_scope(int operation, FutexScope scope) {
  return scope == FutexScope::kThreads ? operation | FUTEX_PRIVATE_FLAG : operation;
}

}  // namespace

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout,
                FutexScope scope) {
  if (timeout <= timeout.zero()) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec relative{};
  relative.tv_sec = static_cast<std::time_t>(seconds.count());
  relative.tv_nsec = static_cast<long>((timeout - seconds).count());
  // Every outcome (woken, value changed, timed out, interrupted) sends the caller back to look at its condition.
  ::syscall(SYS_futex, &word, with_scope(FUTEX_WAIT, scope), expected, &relative, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word, FutexScope scope) {
  ::syscall(SYS_futex, &word, with_scope(FUTEX_WAKE, scope), INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lockstep::comm
