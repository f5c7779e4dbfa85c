#include "lockstep/comm/engine.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr std::size_t divide_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit;
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t size) {
  if (size != 0 && to != from) std::memcpy(to, from, size);
}

}  // namespace

std::uint64_t Engine::start(Kind kind, const void* input, void* output, std::size_t count, Dtype dtype, ReduceOp op,
                            int root, std::string_view label) {
  check_usable();
  const std::uint64_t sequence = first_operation_ + operations_.size() + 1;
  Operation operation;
  operation.request = {.sequence = sequence,
                       .count = count,
                       .root = root,
                       .label = label_hash(label),
                       .kind = kind,
                       .dtype = static_cast<std::uint8_t>(dtype),
                       .op = static_cast<std::uint8_t>(op)};
  operation.label = label;
  operation.input = static_cast<const std::byte*>(input);
  operation.output = static_cast<std::byte*>(output);
  const std::size_t element = size_bytes(dtype);
  const std::size_t ranks = static_cast<std::size_t>(size_);
  operation.piece_count = Segment::kSlotBytes / element;
  if (kind == Kind::kReduceScatter) {
    operation.piece_count = Segment::kSlotBytes / ranks / 64 * 64 / element;
  } else if (kind == Kind::kAllReduce && count * element * ranks > kOneShotBytes) {
    operation.two_phase = true;
    // Shares are rounded up to cache lines; the piece is a whole number of shares so that they still fit the slot.
    operation.piece_count = Segment::kSlotBytes / ranks / 64 * 64 / element * ranks;
  }
  operation.first_piece = enqueued_;
  operation.end_piece = enqueued_ + std::max<std::size_t>(1, divide_up(count, operation.piece_count));
  enqueued_ = operation.end_piece;
  operations_.push_back(operation);
  segment_->flights(rank_).host.begin(operation.request);
  progress();
  return operation.end_piece;
}

void Engine::advance(Cursor& cursor) {
  ++cursor.piece;
  if (cursor.piece == operation_at(cursor).end_piece) ++cursor.operation;
}

Engine::Extent Engine::extent(const Operation& operation, std::uint64_t piece) const {
  Extent extent;
  extent.first = static_cast<std::size_t>(piece - operation.first_piece) * operation.piece_count;
  extent.count = std::min(operation.piece_count, static_cast<std::size_t>(operation.request.count) - extent.first);
  const std::size_t line = 64 / size_bytes(static_cast<Dtype>(operation.request.dtype));
  const std::size_t ranks = static_cast<std::size_t>(size_);
  extent.share = operation.request.kind == Kind::kAllReduce ? round_up(divide_up(extent.count, ranks), line)
                                                            : round_up(extent.count, line);
  return extent;
}

/// Does one unit of work, the oldest first, which also keeps few slots in use and those in the cache. Returns false
/// when everything waits for other ranks; `blocked_` then says for what.
bool Engine::step() {
  blocked_.set = false;
  return try_finish() || try_reduce() || try_post();
}

bool Engine::try_finish() {
  if (finish_.piece == post_.piece) return false;
  const Operation& operation = operation_at(finish_);
  const std::uint64_t piece = finish_.piece;
  if (!reached(operation.two_phase ? kReduced : kPosted, piece + 1, operation)) return false;
  if (!operation.two_phase) verify(operation, piece);
  copy_out(operation, piece);
  if (reduce_.piece == piece) advance(reduce_);  // a piece without a reduce phase
  advance(finish_);
  publish(kDone, piece + 1);
  while (first_operation_ < finish_.operation) {
    segment_->flights(rank_).host.finish(operations_.front().request.sequence);
    operations_.pop_front();
    ++first_operation_;
  }
  return true;
}

bool Engine::try_reduce() {
  while (reduce_.piece < post_.piece && !operation_at(reduce_).two_phase) advance(reduce_);
  if (reduce_.piece == post_.piece) return false;
  const Operation& operation = operation_at(reduce_);
  const std::uint64_t piece = reduce_.piece;
  if (!reached(kPosted, piece + 1, operation)) return false;
  verify(operation, piece);
  reduce_share(operation, piece);
  advance(reduce_);
  publish(kReduced, piece + 1);
  return true;
}

bool Engine::try_post() {
  if (post_.piece == enqueued_) return false;
  const Operation& operation = operation_at(post_);
  const std::uint64_t piece = post_.piece;
  if (piece >= Segment::kNumSlots && !reached(kDone, piece - Segment::kNumSlots + 1, operation)) return false;
  segment_->request(rank_, piece) = operation.request;
  copy_in(operation, piece);
  advance(post_);
  publish(kPosted, piece + 1);
  return true;
}

void Engine::copy_in(const Operation& operation, std::uint64_t piece) {
  const auto [first, count, share] = extent(operation, piece);
  const std::size_t element = size_bytes(static_cast<Dtype>(operation.request.dtype));
  std::byte* slot = segment_->slot(rank_, piece);
  switch (operation.request.kind) {
    case Kind::kBarrier:
      return;
    case Kind::kBroadcast:
      if (operation.request.root != rank_) return;
      [[fallthrough]];
    case Kind::kAllGather:
      copy_bytes(slot, operation.input + first * element, count * element);
      return;
    case Kind::kAllReduce: {
      const std::byte* input = operation.input + first * element;
      if (!operation.two_phase) return copy_bytes(slot, input, count * element);
      // Nobody but this rank reads its own share: it is taken from the buffer, and the slot receives the result.
      const std::size_t begin = std::min(count, share * static_cast<std::size_t>(rank_)) * element;
      const std::size_t end = std::min(count, share * static_cast<std::size_t>(rank_ + 1)) * element;
      copy_bytes(slot, input, begin);
      return copy_bytes(slot + end, input + end, count * element - end);
    }
    case Kind::kReduceScatter:
      for (int rank = 0; rank < size_; ++rank) {
        if (rank == rank_) continue;
        const std::size_t part = static_cast<std::size_t>(rank);
        copy_bytes(slot + part * share * element, operation.input + (part * operation.request.count + first) * element,
                   count * element);
      }
      return;
  }
}

/// The second phase of an all-reduce: this rank's share of the piece, into its slot and into the user's buffer.
void Engine::reduce_share(const Operation& operation, std::uint64_t piece) {
  const auto [first, count, share] = extent(operation, piece);
  const std::size_t element = size_bytes(static_cast<Dtype>(operation.request.dtype));
  const std::size_t begin = std::min(count, share * static_cast<std::size_t>(rank_));
  const std::size_t end = std::min(count, share * static_cast<std::size_t>(rank_ + 1));
  sources_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    sources_.push_back(rank == rank_ ? operation.input + (first + begin) * element
                                     : segment_->slot(rank, piece) + begin * element);
  }
  reduce_sources(operation, segment_->slot(rank_, piece) + begin * element, end - begin,
                 operation.output + (first + begin) * element);
}

/// Reduces `sources_` into `result` and copies that to `second_copy`, block by block while the block is in the cache.
void Engine::reduce_sources(const Operation& operation, std::byte* result, std::size_t count, std::byte* second_copy) {
  const auto dtype = static_cast<Dtype>(operation.request.dtype);
  const std::size_t element = size_bytes(dtype);
  const std::size_t block = (std::size_t{16} << 10) / element;
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t now = std::min(block, count - first);
    reduce(dtype, static_cast<ReduceOp>(operation.request.op), result + first * element, sources_.data(), size_, now);
    copy_bytes(second_copy + first * element, result + first * element, now * element);
    for (const std::byte*& source : sources_) source += now * element;
  }
}

void Engine::copy_out(const Operation& operation, std::uint64_t piece) {
  const auto [first, count, share] = extent(operation, piece);
  const auto dtype = static_cast<Dtype>(operation.request.dtype);
  const std::size_t element = size_bytes(dtype);
  std::byte* output = operation.output + first * element;
  sources_.clear();
  switch (operation.request.kind) {
    case Kind::kBarrier:
      return;
    case Kind::kBroadcast:
      if (operation.request.root != rank_) {
        copy_bytes(output, segment_->slot(operation.request.root, piece), count * element);
      }
      return;
    case Kind::kAllGather:
      for (int rank = 0; rank < size_; ++rank) {
        const std::byte* source = rank == rank_ ? operation.input + first * element : segment_->slot(rank, piece);
        copy_bytes(output + static_cast<std::size_t>(rank) * operation.request.count * element, source,
                   count * element);
      }
      return;
    case Kind::kReduceScatter: {
      const std::size_t mine = static_cast<std::size_t>(rank_);
      for (int rank = 0; rank < size_; ++rank) {
        sources_.push_back(rank == rank_ ? operation.input + (mine * operation.request.count + first) * element
                                         : segment_->slot(rank, piece) + mine * share * element);
      }
      // By way of the slot, since the output may be the rank's own part of the input.
      return reduce_sources(operation, segment_->slot(rank_, piece) + mine * share * element, count, output);
    }
    case Kind::kAllReduce:
      if (!operation.two_phase) {
        for (int rank = 0; rank < size_; ++rank) sources_.push_back(segment_->slot(rank, piece));
        return reduce(dtype, static_cast<ReduceOp>(operation.request.op), output, sources_.data(), size_, count);
      }
      for (int rank = 0; rank < size_; ++rank) {
        if (rank == rank_) continue;
        const std::size_t begin = std::min(count, share * static_cast<std::size_t>(rank)) * element;
        const std::size_t end = std::min(count, share * static_cast<std::size_t>(rank + 1)) * element;
        copy_bytes(output + begin, segment_->slot(rank, piece) + begin, end - begin);
      }
      return;
  }
}

}  // namespace lockstep::comm
