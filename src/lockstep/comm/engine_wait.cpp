// The waiting half of Engine: counters, sleeping, and what happens when another rank does not come.
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/comm/engine.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPeerCheckInterval{20};
// About 100 us of looking before sleeping: a wake-up through the kernel costs about 50 us.
constexpr int kSpins = 2000;
constexpr int kYields = 4;  ///< when there are more ranks than processors, the others need ours

int num_usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool connection_ended(int fd) {
  char byte;
  const ssize_t got = ::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// What another rank's request was for, as far as this rank can tell: it knows the words of its own label only.
std::string label_words(std::uint32_t theirs, std::uint32_t mine, std::string_view label) {
  if (theirs == mine) return label.empty() ? "" : text(" (", label, ")");
  return theirs == 0 ? "" : " (another bucket)";
}

}  // namespace

Engine::Engine(std::shared_ptr<Segment> segment, int rank, const char* backend, CommOptions options,
               std::vector<PeerSocket> peers)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(segment_->num_ranks()),
      backend_(backend),
      options_(std::move(options)),
      may_spin_(size_ <= num_usable_cpus()),
      peers_(std::move(peers)),
      last_peer_check_(Clock::now()) {
  for (auto& seen : seen_) seen.resize(static_cast<std::size_t>(size_), 0);
  sources_.reserve(static_cast<std::size_t>(size_));
}

std::atomic<std::uint64_t>& Engine::counter(Counter which, int rank) const {
  RankControl& control = segment_->control(rank);
  return which == kPosted ? control.posted : which == kReduced ? control.reduced : control.done;
}

bool Engine::reached(Counter which, std::uint64_t needed, const Operation& operation) {
  for (int rank = 0; rank < size_; ++rank) {
    std::uint64_t& seen = seen_[which][static_cast<std::size_t>(rank)];
    if (seen >= needed) continue;
    seen = counter(which, rank).load();
    if (seen >= needed) continue;
    // A stage that waits for this rank's own earlier stage is no reason to sleep: nobody would ring for it.
    if (rank == rank_) return false;
    if (!blocked_.set) blocked_ = {true, which, needed, rank, operation.request, operation.label};
    return false;
  }
  return true;
}

void Engine::publish(Counter which, std::uint64_t value) {
  counter(which, rank_).store(value);
  ring_those_waiting_for(rank_);
}

void Engine::ring_those_waiting_for(int rank) const {
  for (int other = 0; other < size_; ++other) {
    RankControl& control = segment_->control(other);
    if (other == rank_ || control.waiting_for.load() != static_cast<std::uint32_t>(rank) + 1) continue;
    control.bell.fetch_add(1);
    futex_wake(control.bell, segment_->scope());
  }
}

void Engine::sleep(std::chrono::nanoseconds slice) {
  RankControl& own = segment_->control(rank_);
  RankControl& awaited = segment_->control(blocked_.rank);
  const std::uint32_t bell = own.bell.load();
  own.waiting_for.store(static_cast<std::uint32_t>(blocked_.rank) + 1);
  if (counter(blocked_.counter, blocked_.rank).load() < blocked_.needed && awaited.left.load() == 0 &&
      awaited.dead.load() == 0) {
    futex_wait(own.bell, bell, slice, segment_->scope());
  }
  own.waiting_for.store(0);
}

void Engine::progress() {
  check_usable();
  while (step()) {
  }
}

bool Engine::test(std::uint64_t end) {
  if (finish_.piece >= end) return true;
  progress();
  if (finish_.piece >= end) return true;
  if (Clock::now() - last_peer_check_ >= kPeerCheckInterval) {
    check_peers();
    throw_if_lost();
  }
  return false;
}

void Engine::wait(std::uint64_t end) {
  int looks = 0;
  Clock::time_point blocked_since;
  while (finish_.piece < end) {
    check_usable();
    if (step()) {
      looks = 0;
    } else if (looks < (may_spin_ ? kSpins : kYields)) {
      if (++looks == 1) blocked_since = {};
      if (may_spin_) {
        spin_pause();
      } else {
        ::sched_yield();
      }
    } else {
      const auto now = Clock::now();
      if (blocked_since == Clock::time_point{}) blocked_since = now;
      if (now - last_peer_check_ >= kPeerCheckInterval) check_peers();
      throw_if_lost();
      const auto left = blocked_since + options_.timeout - now;
      if (left <= left.zero()) fail_timeout();
      sleep(std::min<std::chrono::nanoseconds>(left, kPeerCheckInterval));
    }
  }
}

void Engine::close() noexcept {
  if (closed_) return;
  closed_ = true;
  segment_->control(rank_).left.store(1);
  ring_those_waiting_for(rank_);
  peers_.clear();
}

void Engine::check_usable() const {
  if (failure_) std::rethrow_exception(failure_);
  if (closed_) throw CommError(text("communicator \"", options_.name, "\" was destroyed before its work was done"));
}

/// Rank 0 holds a connection to every rank, the others hold one to rank 0; whoever sees an end tells everyone.
void Engine::check_peers() {
  last_peer_check_ = Clock::now();
  std::erase_if(peers_, [&](const PeerSocket& peer) {
    if (!connection_ended(peer.fd.get())) return false;
    RankControl& control = segment_->control(peer.rank);
    // In order means: `left` first, then the connection's end.
    if (control.left.load() == 0) {
      control.dead.store(1);
      ring_those_waiting_for(peer.rank);
    }
    return true;
  });
}

std::vector<int> Engine::missing_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (counter(blocked_.counter, rank).load() < blocked_.needed) ranks.push_back(rank);
  }
  return ranks;
}

std::string Engine::describe_wait() const {
  return text("rank ", rank_, " of communicator \"", options_.name, "\" in ", blocked_.request.to_string(),
              blocked_.label.empty() ? "" : text(" (", blocked_.label, ")"));
}

/// Fails when a rank that is needed cannot come any more. Where ranks left because another one died, names that one.
void Engine::throw_if_lost() {
  if (!blocked_.set) return;
  int lost = -1;
  for (int rank = 0; rank < size_ && lost < 0; ++rank) {
    const RankControl& control = segment_->control(rank);
    // The flags before the counter: what a rank did before it left still counts.
    const bool gone = control.left.load() != 0 || control.dead.load() != 0;
    if (gone && counter(blocked_.counter, rank).load() < blocked_.needed) lost = rank;
  }
  if (lost < 0) return;
  for (int rank = size_ - 1; rank >= 0; --rank) {
    if (segment_->control(rank).dead.load() != 0) lost = rank;
  }
  const RankControl& control = segment_->control(lost);
  const bool processes = segment_->scope() == FutexScope::kProcesses;
  const std::string who = processes ? text("rank ", lost, " (pid ", control.pid.load(), ")") : text("rank ", lost);
  const std::string seen = last_seen(lost, segment_->flights(lost).host, 0);
  std::string message = control.dead.load() != 0
                            ? text(who, " died; ", describe_wait(), " was waiting for it (", seen, ")")
                            : text(who, " has left the communicator; ", describe_wait(), " needs it (", seen, ")");
  if (processes) std::this_thread::sleep_for(kFirstFailureLead);
  fail(std::make_exception_ptr(CommError(
      message, control.dead.load() != 0 ? text("look at the output of rank ", lost, ": it failed first")
                                        : "every rank must make the same calls; look for an earlier error there")));
}

void Engine::fail_timeout() {
  const std::vector<int> missing = missing_ranks();
  std::vector<std::string> seen;
  for (const int rank : missing) {
    const bool is_process = segment_->scope() == FutexScope::kProcesses;
    seen.push_back(last_seen(rank, segment_->flights(rank).host, is_process ? segment_->control(rank).pid.load() : 0));
  }
  fail(std::make_exception_ptr(TimeoutError(text(describe_wait(), ": ", rank_list(missing), " did not come within ",
                                                 format_duration(options_.timeout), " (", join(seen, ", "), ")"),
                                            "a rank that is merely slow needs a longer timeout")));
}

void Engine::fail(std::exception_ptr failure) {
  failure_ = std::move(failure);
  // The others must not wait for a rank that has given up.
  segment_->control(rank_).left.store(1);
  ring_those_waiting_for(rank_);
  std::rethrow_exception(failure_);
}

void Engine::verify(const Operation& operation, std::uint64_t piece) {
  const auto& mine = operation.request;
  bool same = true;
  for (int rank = 0; rank < size_; ++rank) same = same && segment_->request(rank, piece) == mine;
  if (same) return;
  std::string message = text("the ranks of communicator \"", options_.name,
                             "\" ask for different collectives (seen by rank ", rank_, ")");
  for (int rank = 0; rank < size_; ++rank) {
    const Request& theirs = segment_->request(rank, piece);
    message +=
        text("\n  rank ", rank, ": ", theirs.to_string(), label_words(theirs.label, mine.label, operation.label));
  }
  fail(std::make_exception_ptr(CommError(message, kSameCallsHint)));
}

}  // namespace lockstep::comm
