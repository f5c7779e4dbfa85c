#include "lockstep/comm/flight_page.h"

#include <cstring>

#include "lockstep/base/text.h"
#include "lockstep/host/process.h"

namespace lockstep::comm {

std::string Request::to_string() const {
  static constexpr const char* kKinds[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"};
  static constexpr const char* kOps[] = {"sum", "min", "max"};
  std::string out = text("operation #", sequence, ": ", kKinds[static_cast<int>(kind)]);
  if (kind == Kind::kBarrier) return out;
  if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter) out += text("(", kOps[op], ")");
  if (kind == Kind::kBroadcast) out += text("(root ", root, ")");
  out += text(" of ", count, " ", name(static_cast<Dtype>(dtype)));
  if (kind == Kind::kReduceScatter || kind == Kind::kAllGather) out += " a rank";
  return out;
}

// FNV-1a, 32 bits (Fowler, Noll, Vo): the same in every process, which std::hash does not promise.
std::uint32_t label_hash(std::string_view label) {
  std::uint32_t hash = 2166136261u;
  for (const char c : label) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return label.empty() ? 0 : hash;
}

void FlightPage::reset() noexcept {
  for (auto& entry : entries_) entry.sequence.store(0, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  begun_.store(0, std::memory_order_relaxed);
  set_state(State::kInUse);
}

void FlightPage::begin(const Request& request) noexcept {
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), &request, sizeof(request));
  Entry& entry = entries_[request.sequence % kNumEntries];
  // A reader that sees one of the new words also sees the 0 before them.
  entry.sequence.store(0, std::memory_order_relaxed);
  for (std::size_t w = 0; w < kWords; ++w) entry.words[w].store(words[w], std::memory_order_release);
  entry.sequence.store(request.sequence, std::memory_order_release);
  begun_.store(request.sequence, std::memory_order_release);
}

std::optional<Request> FlightPage::request(std::uint64_t sequence) const noexcept {
  const Entry& entry = entries_[sequence % kNumEntries];
  if (sequence == 0 || entry.sequence.load(std::memory_order_acquire) != sequence) return std::nullopt;
  std::array<std::uint64_t, kWords> words;
  for (std::size_t w = 0; w < kWords; ++w) words[w] = entry.words[w].load(std::memory_order_acquire);
  if (entry.sequence.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  Request request;
  std::memcpy(static_cast<void*>(&request), words.data(), sizeof(request));
  return request;
}

std::string rank_list(const std::vector<int>& ranks) {
  std::vector<std::string> numbers;
  for (const int rank : ranks) numbers.push_back(text(rank));
  return text(ranks.size() == 1 ? "rank " : "ranks ", join(numbers, ", "));
}

std::string last_seen(int rank, const FlightPage& page, int pid) {
  const std::uint64_t begun = page.begun();
  std::string out = text("rank ", rank, begun == 0 ? text(" has begun none") : text(" last began operation #", begun));
  if (const auto request = page.request(begun)) out = text("rank ", rank, " last began ", request->to_string());
  if (pid == 0) return out;
  const auto process = host::read_process(pid);
  if (!process || process->is_zombie()) return text(out, "; its process ", pid, " has ended");
  if (process->state == 'T') return text(out, "; its process ", pid, " is stopped");
  return out;
}

}  // namespace lockstep::comm
