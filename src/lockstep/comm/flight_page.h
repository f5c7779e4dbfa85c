#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

enum class Kind : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };

/// What one rank asked for in one collective. Ranks compare theirs before any data is used.
struct Request {
  std::uint64_t sequence = 0;  ///< 1 for the first collective of a communicator
  std::uint64_t count = 0;     ///< elements: of the buffer, or of one part for reduce_scatter and all_gather
  std::int32_t root = 0;
  std::uint32_t label = 0;  ///< label_hash() of the communicator's label: tells a bucket from another of its size
  Kind kind = Kind::kBarrier;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;

  bool operator==(const Request&) const = default;
  /// "operation #7: all_reduce(max) of 100 f32".
  std::string to_string() const;
};

std::uint32_t label_hash(std::string_view label);

/// One rank's flight recorder: the collectives that it has begun and finished last, in memory that all ranks of the
/// host see. One writer, its rank; any thread of any rank may read at any time, also when the writer has hung or died.
class FlightPage {
 public:
  static constexpr std::size_t kNumEntries = 256;
  enum class State : std::uint32_t {
    kUnused,
    kInUse,
    kLeft,    ///< ended in order
    kFailed,  ///< ended by a fault of its own
    kGaveUp,  ///< ended because of the other ranks
  };

  /// Empties the page. Nobody may read meanwhile.
  void reset() noexcept;

  void begin(const Request& request) noexcept;
  void finish(std::uint64_t sequence) noexcept { finished_.store(sequence, std::memory_order_release); }
  void set_state(State state) noexcept { state_.store(state, std::memory_order_release); }

  State state() const noexcept { return state_.load(std::memory_order_acquire); }
  /// Sequence number of the last collective begun; 0: none.
  std::uint64_t begun() const noexcept { return begun_.load(std::memory_order_acquire); }
  std::uint64_t finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  /// nullopt when it has not begun, or is longer ago than kNumEntries.
  std::optional<Request> request(std::uint64_t sequence) const noexcept;

 private:
  static constexpr std::size_t kWords = sizeof(Request) / sizeof(std::uint64_t);
  static_assert(sizeof(Request) % sizeof(std::uint64_t) == 0);
  // A reader may meet a writer: words are atomic, and `sequence` says which request they are whole for.
  struct Entry {
    std::atomic<std::uint64_t> sequence{0};
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };

  std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<State> state_{State::kUnused};
  std::array<Entry, kNumEntries> entries_{};
};

// What the two kinds of waiting, over shared memory and over GPUs, say and do alike.

/// A rank that dies takes its peers' collectives with it. They hold their own error back this long, so that a launcher
/// sees the rank that failed first end first.
inline constexpr std::chrono::milliseconds kFirstFailureLead{300};

inline constexpr const char* kSameCallsHint =
    "every rank must make the same calls in the same order with the same counts, types and operations";

/// "rank 3", "ranks 1, 2".
std::string rank_list(const std::vector<int>& ranks);

/// Where a rank was last seen, for people: "rank 1 last began operation #3: barrier; its process is stopped". `pid` is
/// 0 when the rank is a thread of this process.
std::string last_seen(int rank, const FlightPage& page, int pid);

}  // namespace lockstep::comm
