#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::comm {

enum class FutexScope { kThreads, kProcesses };

/// Sleeps while `word` holds `expected`, at most `timeout`. May return early for no reason.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout,
                FutexScope scope);

/// Wakes everyone who sleeps on `word`.
void futex_wake(std::atomic<std::uint32_t>& word, FutexScope scope);

}  // namespace lockstep::comm
