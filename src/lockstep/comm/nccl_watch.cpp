// The watcher of NcclEngine: whether the ranks' collectives go on, and if not, why.
#include <poll.h>

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/comm/nccl_engine.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval{20};

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

void NcclEngine::watch() {
  api_.cuda.set_device(options_.device);
  std::unique_lock lock(mutex_);
  while (!stopping_ && !failure_) {
    lock.unlock();
    look();
    lock.lock();
    wake_watcher_.notify_all();  // for a destructor that waits for the last flight
    if (!stopping_) wake_watcher_.wait_for(lock, kInterval);
  }
}

void NcclEngine::look() {
  using State = FlightPage::State;
  if (const auto failure = look_at_nccl()) return fail(failure, State::kFailed);
  if (const auto failure = take_finished()) return fail(failure, State::kFailed);
  if (const auto failure = compare_requests()) return fail(failure, State::kGaveUp);
  std::unique_lock lock(mutex_);
  if (flights_.empty()) return;
  const Flight oldest = flights_.front();
  lock.unlock();
  if (const auto failure = look_for_lost(oldest)) return fail(failure, State::kGaveUp);
  const bool others_gave_up = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.page != nullptr && peer.page->state() == State::kGaveUp;
  });
  const auto waited = Clock::now() - oldest.since;
  if (waited >= options_.limits.timeout || (others_gave_up && waited >= kFirstFailureLead)) {
    fail(describe_stall(oldest), State::kGaveUp);
  }
}

std::exception_ptr NcclEngine::look_at_nccl() {
  int code = 0;
  if (api_.nccl.async_error(nccl_.get(), &code) != 0 || code == 0 || code == NcclApi::kInProgress) return nullptr;
  return std::make_exception_ptr(
      CommError(text("rank ", rank_, " on GPU ", options_.device, ": NCCL: ", api_.nccl.describe(code, nccl_.get())),
                "NCCL_DEBUG=WARN shows more"));
}

std::exception_ptr NcclEngine::take_finished() {
  std::unique_lock lock(mutex_);
  while (!flights_.empty() && flights_.front().is_launched) {
    const int code = api_.cuda.event_query(flights_.front().done->handle());
    if (code == CudaApi::kNotReady) return nullptr;
    if (code != 0) {
      const Flight failed = flights_.front();
      lock.unlock();
      return std::make_exception_ptr(
          CommError(text(describe(failed), ": the GPU reports: ", api_.cuda.error_text(code)),
                    "a kernel of this rank has failed, not necessarily NCCL's; CUDA_LAUNCH_BLOCKING=1 shows which"));
    }
    if (auto* page = own_page()) page->finish(flights_.front().request.sequence);
    flights_.pop_front();
    if (!flights_.empty()) flights_.front().since = Clock::now();
  }
  return nullptr;
}

// NCCL does not compare: other sizes hang or give wrong sums. What the ranks asked for is in their flight recorders.
std::exception_ptr NcclEngine::compare_requests() {
  auto begun = std::numeric_limits<std::uint64_t>::max();
  for (const auto& peer : peers_) begun = std::min(begun, peer.page != nullptr ? peer.page->begun() : 0);
  while (compared_ < begun) {
    const auto own = own_page()->request(++compared_);
    const bool differs = own && std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
                           const auto theirs = peer.page->request(compared_);
                           return theirs && *theirs != *own;
                         });
    if (!differs) continue;
    std::string asked;
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      const auto theirs = peers_[r].page->request(compared_);
      asked += text("\n  rank ", r, ": ",
                    theirs ? text(theirs->to_string(), words_for(theirs->label)) : text("(no longer known)"));
    }
    return std::make_exception_ptr(CommError(text("the ranks of communicator \"", options_.limits.name,
                                                  "\" ask for different collectives (seen by rank ", rank_, ")", asked),
                                             kSameCallsHint));
  }
  return nullptr;
}

std::exception_ptr NcclEngine::look_for_lost(const Flight& oldest) {
  // What a rank did before it ended still counts.
  if (Clock::now() - oldest.since < kFirstFailureLead) return nullptr;
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == rank_ || peer.page == nullptr) continue;
    const auto state = peer.page->state();
    const bool left = state == FlightPage::State::kLeft && peer.page->begun() < oldest.request.sequence;
    const bool failed = state == FlightPage::State::kFailed;
    const bool ended = peer.process.get() >= 0 && is_readable(peer.process.get());
    const bool died = ended && state == FlightPage::State::kInUse;
    if (!died && !left && !failed) continue;
    const char* what = died ? " died; " : left ? " has left the communicator; " : " has failed; ";
    return std::make_exception_ptr(
        CommError(text("rank ", rank, what, describe(oldest), " needs it (", peers_seen({rank}), ")"),
                  left ? "every rank must make the same calls; look for an earlier error there"
                       : text("look at the output of rank ", rank, ": it failed first")));
  }
  return nullptr;
}

std::exception_ptr NcclEngine::describe_stall(const Flight& oldest) {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    const auto* page = peers_[static_cast<std::size_t>(rank)].page;
    if (page != nullptr && page->begun() < oldest.request.sequence) missing.push_back(rank);
  }
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - oldest.since);
  const std::string within = text(" within ", format_duration(std::min(waited, options_.limits.timeout)));
  if (missing.empty()) {
    return std::make_exception_ptr(TimeoutError(
        text(describe(oldest), ": all ranks have come, and it did not finish", within),
        "a GPU may still be busy with earlier work: a longer timeout helps then; else NCCL_DEBUG=INFO shows more"));
  }
  return std::make_exception_ptr(TimeoutError(
      text(describe(oldest), ": ", rank_list(missing), " did not come", within, " (", peers_seen(missing), ")"),
      "a rank that is merely slow needs a longer timeout"));
}

std::string NcclEngine::words_for(std::uint32_t label) {
  if (label == 0) return "";
  const std::lock_guard lock(mutex_);
  const auto found = labels_.find(label);
  return found == labels_.end() ? " (for something that this rank has not exchanged)" : text(" (", found->second, ")");
}

std::string NcclEngine::describe(const Flight& flight) {
  return text("rank ", rank_, " of communicator \"", options_.limits.name, "\" on GPU ", options_.device, " in ",
              flight.request.to_string(), words_for(flight.request.label));
}

std::string NcclEngine::peers_seen(const std::vector<int>& ranks) const {
  std::vector<std::string> seen;
  for (const int rank : ranks) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (peer.page != nullptr) seen.push_back(last_seen(rank, *peer.page, peer.pid));
  }
  return join(seen, ", ");
}

// Aborting frees the GPU, and with it a thread that waits for it. The reason is set first: whoever is freed finds it.
void NcclEngine::fail(std::exception_ptr failure, FlightPage::State state) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::move(failure);
    has_failed_.store(true, std::memory_order_release);
  }
  if (auto* page = own_page()) page->set_state(state);
  api_.nccl.abort(nccl_.get());
}

}  // namespace lockstep::comm
