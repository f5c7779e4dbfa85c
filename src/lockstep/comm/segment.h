#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/comm/flight_page.h"
#include "lockstep/comm/futex.h"

namespace lockstep::comm {

using Nonce = std::array<std::uint8_t, 16>;

/// One rank's part of the shared state. Each group that another rank writes or polls has a cache line of its own.
/// Counters only grow: posted = p means that the rank has put pieces 0..p-1 into its slots, and so on.
struct RankControl {
  alignas(64) std::atomic<std::uint64_t> posted{0};
  alignas(64) std::atomic<std::uint64_t> reduced{0};
  alignas(64) std::atomic<std::uint64_t> done{0};
  alignas(64) std::atomic<std::uint32_t> bell{0};  ///< futex word on which this rank sleeps
  std::atomic<std::uint32_t> waiting_for{0};       ///< 1 + the rank whose counters it sleeps for; 0 when awake
  alignas(64) std::atomic<std::uint32_t> left{0};  ///< the rank will post nothing more: it ended, or it failed
  std::atomic<std::uint32_t> dead{0};              ///< the rank's process ended without leaving
  std::atomic<std::int32_t> pid{0};
};

/// Flight recorders of a rank: for collectives over this memory, and for those over its devices.
struct alignas(64) RankFlights {
  FlightPage host;
  FlightPage device;
};

/// The memory that the ranks of one communicator share: a control block and flight recorders for each rank, and for
/// each rank `kNumSlots` staging slots with the request that each belongs to. Piece q of the communicator's life uses
/// slot q % kNumSlots. Pages are touched on first use only.
class Segment {
 public:
  static constexpr std::uint64_t kNumSlots = 8;
  // Eight slots of 256 KiB keep a rank's staging within a second-level cache of 2 MiB.
  static constexpr std::size_t kSlotBytes = std::size_t{256} << 10;

  static std::size_t size_bytes(int num_ranks);

  /// Maker's side: lays the control blocks out in zeroed memory.
  static Segment create(MappedMemory memory, int num_ranks, const Nonce& nonce, FutexScope scope);
  /// The other ranks' side. Throws CommError when the memory was not laid out by create() of this version and job.
  static Segment attach(MappedMemory memory, int num_ranks, const Nonce& nonce);

  int num_ranks() const noexcept { return num_ranks_; }
  FutexScope scope() const noexcept { return scope_; }
  RankControl& control(int rank) const { return controls_[rank]; }
  RankFlights& flights(int rank) const { return flights_[rank]; }
  Request& request(int rank, std::uint64_t piece) const { return requests_[slot_index(rank, piece)].request; }
  std::byte* slot(int rank, std::uint64_t piece) const { return slots_ + slot_index(rank, piece) * kSlotBytes; }

 private:
  struct Header {
    std::uint64_t version = 0;
    Nonce nonce{};
    std::int32_t num_ranks = 0;
  };
  struct alignas(64) PaddedRequest {
    Request request;
  };
  Segment(MappedMemory memory, int num_ranks, FutexScope scope);
  static std::size_t slot_index(int rank, std::uint64_t piece) {
    return static_cast<std::size_t>(rank) * kNumSlots + piece % kNumSlots;
  }
  Header* header() const { return reinterpret_cast<Header*>(memory_.data()); }

  MappedMemory memory_;
  int num_ranks_ = 0;
  FutexScope scope_ = FutexScope::kProcesses;
  RankControl* controls_ = nullptr;
  RankFlights* flights_ = nullptr;
  PaddedRequest* requests_ = nullptr;
  std::byte* slots_ = nullptr;
};

}  // namespace lockstep::comm
