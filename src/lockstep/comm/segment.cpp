#include "lockstep/comm/segment.h"

#include <memory>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

constexpr std::uint64_t kVersion = 0x4c4f434b53544502;  // "LOCKSTE" and the layout's number
constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::size_t controls_bytes(int num_ranks) {
  return round_up(static_cast<std::size_t>(num_ranks) * sizeof(RankControl), kPage);
}
std::size_t flights_bytes(int num_ranks) {
  return round_up(static_cast<std::size_t>(num_ranks) * sizeof(RankFlights), kPage);
}
std::size_t requests_bytes(int num_ranks) {
  return round_up(static_cast<std::size_t>(num_ranks) * Segment::kNumSlots * 64, kPage);
}

}  // namespace

std::size_t Segment::size_bytes(int num_ranks) {
  return kPage + controls_bytes(num_ranks) + flights_bytes(num_ranks) + requests_bytes(num_ranks) +
         static_cast<std::size_t>(num_ranks) * kNumSlots * kSlotBytes;
}

Segment::Segment(MappedMemory memory, int num_ranks, FutexScope scope)
    : memory_(std::move(memory)), num_ranks_(num_ranks), scope_(scope) {
  static_assert(sizeof(PaddedRequest) == 64);
  std::byte* place = memory_.data() + kPage;
  controls_ = reinterpret_cast<RankControl*>(place);
  place += controls_bytes(num_ranks);
  flights_ = reinterpret_cast<RankFlights*>(place);
  place += flights_bytes(num_ranks);
  requests_ = reinterpret_cast<PaddedRequest*>(place);
  slots_ = place + requests_bytes(num_ranks);
}

Segment Segment::create(MappedMemory memory, int num_ranks, const Nonce& nonce, FutexScope scope) {
  LOCKSTEP_CHECK(memory.size_bytes() >= size_bytes(num_ranks));
  Segment segment(std::move(memory), num_ranks, scope);
  std::construct_at(segment.header(), Header{kVersion, nonce, num_ranks});
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::construct_at(segment.controls_ + rank);
    std::construct_at(segment.flights_ + rank);
  }
  return segment;
}

Segment Segment::attach(MappedMemory memory, int num_ranks, const Nonce& nonce) {
  if (memory.size_bytes() < size_bytes(num_ranks)) throw CommError("the shared memory is smaller than expected");
  Segment segment(std::move(memory), num_ranks, FutexScope::kProcesses);
  const Header& header = *segment.header();
  if (header.version != kVersion || header.nonce != nonce || header.num_ranks != num_ranks) {
    throw CommError("the shared memory belongs to another job or to another version of Lockstep",
                    "run the same build in every rank");
  }
  return segment;
}

}  // namespace lockstep::comm
