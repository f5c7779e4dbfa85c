#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/segment.h"

namespace lockstep::comm {

/// A connection to another rank's process that carries no data: its end says that the process ended.
struct PeerSocket {
  int rank = 0;
  UniqueFd fd;
};

/// The collectives of one rank over a Segment: a state machine that the rank's own thread pushes along.
///
/// A collective is cut into pieces, numbered through the communicator's life, that fit a staging slot. A rank *posts*
/// a piece (copies what others need into its slot), *reduces* its share of it once all have posted, and *finishes* it
/// (copies the result out) once all have reduced. All-reduces up to kOneShotBytes, and every other kind, have no
/// exchange after the posts: each rank takes what it needs from the slots directly. A slot is free again when every
/// rank is done with the piece that was in it. Every rank sums in rank order, so results are the same bits everywhere.
///
/// Ordering: a rank publishes data by raising one of its counters, others read the data after they have seen the
/// counter. Sleeping follows the usual pattern of two flags under sequential consistency: the sleeper announces itself
/// and looks at the counter again, the poster raises the counter and looks for announcements, so one of them sees the
/// other.
class Engine {
 public:
  /// Total bytes that one rank reads in an all-reduce without a second exchange: below it a synchronisation
  /// (about 0.3 us) costs more than summing everything on every rank.
  static constexpr std::size_t kOneShotBytes = std::size_t{64} << 10;

  Engine(std::shared_ptr<Segment> segment, int rank, const char* backend, CommOptions options,
         std::vector<PeerSocket> peers);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() { close(); }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const char* backend() const noexcept { return backend_; }
  const Segment& segment() const noexcept { return *segment_; }

  /// Queues a collective and starts what can start; `label` must stay valid until it is complete. Returns the piece
  /// count after which it is complete.
  std::uint64_t start(Kind kind, const void* input, void* output, std::size_t count, Dtype dtype, ReduceOp op, int root,
                      std::string_view label);

  void progress();
  /// Helps once without blocking; true when every piece below `end` is finished.
  bool test(std::uint64_t end);
  void wait(std::uint64_t end);

  /// Tells the others that this rank will post nothing more. Collectives still under way fail.
  void close() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  enum Counter { kPosted, kReduced, kDone, kNumCounters };

  struct Operation {
    Request request;
    std::string_view label;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::size_t piece_count = 0;  ///< elements a piece: of the buffer, or of each rank's part
    std::uint64_t first_piece = 0;
    std::uint64_t end_piece = 0;
    bool two_phase = false;
  };
  /// A place in the stream of pieces, and the operation (counted from the communicator's first) it belongs to.
  struct Cursor {
    std::uint64_t piece = 0;
    std::uint64_t operation = 0;
  };
  /// Elements [first, first + count) of the buffer or part, and the piece's layout in a slot.
  struct Extent {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t share = 0;  ///< elements of one rank's share, a whole number of cache lines
  };
  /// The condition that the oldest unfinished piece waits for: `counter` of every rank >= `needed`.
  struct Blocked {
    bool set = false;
    Counter counter = kPosted;
    std::uint64_t needed = 0;
    int rank = 0;  ///< the first rank that has not come
    Request request;
    std::string_view label;
  };

  bool step();
  bool try_finish();
  bool try_reduce();
  bool try_post();
  void verify(const Operation& operation, std::uint64_t piece);
  void copy_in(const Operation& operation, std::uint64_t piece);
  void reduce_share(const Operation& operation, std::uint64_t piece);
  void copy_out(const Operation& operation, std::uint64_t piece);
  void reduce_sources(const Operation& operation, std::byte* result, std::size_t count, std::byte* second_copy);

  Operation& operation_at(const Cursor& cursor) { return operations_[cursor.operation - first_operation_]; }
  void advance(Cursor& cursor);
  Extent extent(const Operation& operation, std::uint64_t piece) const;

  std::atomic<std::uint64_t>& counter(Counter which, int rank) const;
  bool reached(Counter which, std::uint64_t needed, const Operation& operation);
  void publish(Counter which, std::uint64_t value);
  void ring_those_waiting_for(int rank) const;

  void sleep(std::chrono::nanoseconds slice);
  void check_usable() const;
  void check_peers();
  void throw_if_lost();
  [[noreturn]] void fail_timeout();
  [[noreturn]] void fail(std::exception_ptr failure);
  std::vector<int> missing_ranks() const;
  std::string describe_wait() const;

  std::shared_ptr<Segment> segment_;
  const int rank_;
  const int size_;
  const char* const backend_;
  const CommOptions options_;
  const bool may_spin_;
  std::vector<PeerSocket> peers_;

  std::deque<Operation> operations_;   ///< not yet finished, oldest first
  std::uint64_t first_operation_ = 0;  ///< number of operations_.front()
  std::uint64_t enqueued_ = 0;         ///< pieces of all operations so far
  Cursor post_;
  Cursor reduce_;
  Cursor finish_;
  std::vector<std::uint64_t> seen_[kNumCounters];  ///< last seen value of each rank's counter
  std::vector<const std::byte*> sources_;          ///< where each rank's contribution lies: argument of reduce_sources
  Blocked blocked_;
  Clock::time_point last_peer_check_;
  std::exception_ptr failure_;
  bool closed_ = false;
};

/// The communicator over `engine`.
std::unique_ptr<Communicator> make_engine_communicator(std::shared_ptr<Engine> engine);

/// A communicator of one rank that calls itself `backend`.
std::unique_ptr<Communicator> make_lone_communicator(const char* backend);

}  // namespace lockstep::comm
