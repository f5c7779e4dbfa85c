#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::comm {

/// A small key-value store that all ranks of a job can reach: only for meeting, never for data.
/// Implementations are safe to use from several threads.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;

  /// Waits until `key` is set. Throws TimeoutError that names the key.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;

  /// Adds to the integer under `key` (missing counts as 0) and returns the new value.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
};

}  // namespace lockstep::comm
