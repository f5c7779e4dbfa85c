#include "lockstep/launch/job.h"

#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/host/process.h"

namespace lockstep::launch {

namespace {

using std::chrono::milliseconds;

constexpr auto kTickInterval = milliseconds(100);
constexpr auto kOrphanScanInterval = milliseconds(2000);
// Between two looks for processes that outlive the ranks, and for ranks on kernels without pidfds.
constexpr auto kPollInterval = milliseconds(20);
// SIGKILL ends everything but a process inside a broken driver call: such a one is named and left to the kernel.
constexpr auto kUnkillableAfter = milliseconds(10000);
// Output that waits for a slow reader: above the first bound the ranks are no longer read, below the second again.
constexpr std::size_t kPauseBytes = 1 << 20;
constexpr std::size_t kResumeBytes = 1 << 18;
constexpr std::size_t kReadBytesPerEvent = 1 << 18;
// A dead rank's pipe holds at most 1 MiB; a helper of it may be writing on.
constexpr std::size_t kDrainBytes = 4 << 20;

std::uint64_t event_key(std::uint32_t source, int index) {
  return (static_cast<std::uint64_t>(source) << 32) | static_cast<std::uint32_t>(index);
}

}  // namespace

LaunchResult Job::watch() {
  next_tick_ = Clock::now();
  next_orphan_scan_ = Clock::now() + kOrphanScanInterval;
  while (!done_) {
    wait_for_events();
    handle_ticks();
    advance();
  }
  guard_.reset();  // kills what is left of the group: the store
  if (store_) host::wait_for(store_->pid);
  for (auto& [stream, key] : rank_streams()) stream->close();
  for (auto& stream : store_streams_) stream->close();
  if (options_.on_tick) options_.on_tick();
  report();
  flush_console();
  return result_;
}

void Job::watch_descriptor(int fd, EventSource source, int index, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = event_key(static_cast<std::uint32_t>(source), index);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

std::vector<std::pair<RankStream*, int>> Job::rank_streams() {
  std::vector<std::pair<RankStream*, int>> streams;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const int key = 2 * static_cast<int>(rank);
    if (ranks_[rank].out) streams.emplace_back(ranks_[rank].out.get(), key);
    if (ranks_[rank].err) streams.emplace_back(ranks_[rank].err.get(), key + 1);
  }
  return streams;
}

void Job::update_console_watch() {
  ConsoleStream* const consoles[] = {&console_out_, &console_err_};
  for (int i = 0; i < 2; ++i) {
    consoles[i]->flush();
    const bool wanted = consoles[i]->pending_bytes() > 0;
    if (wanted == console_watched_[i]) continue;
    console_watched_[i] = wanted;
    if (wanted) {
      watch_descriptor(consoles[i]->fd(), EventSource::kConsole, i, EPOLLOUT);
    } else {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, consoles[i]->fd(), nullptr);
    }
  }
}

void Job::update_reading() {
  const std::size_t pending = std::max(console_out_.pending_bytes(), console_err_.pending_bytes());
  if (!reading_paused_ && pending > kPauseBytes) {
    reading_paused_ = true;
    for (auto& [stream, key] : rank_streams()) {
      if (stream->is_open()) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stream->fd(), nullptr);
    }
  } else if (reading_paused_ && pending < kResumeBytes) {
    reading_paused_ = false;
    for (auto& [stream, key] : rank_streams()) {
      if (stream->is_open()) watch_descriptor(stream->fd(), EventSource::kRankStream, key, EPOLLIN);
    }
  }
}

Job::Clock::time_point Job::next_wakeup() const {
  auto wakeup = next_tick_;
  if (kill_at_) wakeup = std::min(wakeup, *kill_at_);
  const bool must_poll = !any_rank_alive() || std::any_of(ranks_.begin(), ranks_.end(),
                                                          [](const Rank& rank) { return rank.alive && !rank.pidfd; });
  if (must_poll || killed_) wakeup = std::min(wakeup, Clock::now() + kPollInterval);
  return wakeup;
}

void Job::wait_for_events() {
  update_console_watch();
  update_reading();
  const auto left = std::chrono::ceil<milliseconds>(next_wakeup() - Clock::now());
  epoll_event events[256];
  const int count = ::epoll_wait(epoll_.get(), events, 256, std::max(0, static_cast<int>(left.count())));
  // epoll reports in the order in which descriptors became ready, so two ranks that end within one round are seen in
  // the order of their deaths. Ends go before output: their handler reads the rank's last words itself.
  for (int i = 0; i < count; ++i) {
    const auto source = static_cast<EventSource>(events[i].data.u64 >> 32);
    const auto index = static_cast<std::uint32_t>(events[i].data.u64);
    if (source == EventSource::kRankEnd) on_rank_end(static_cast<int>(index));
    if (source == EventSource::kSignals) take_stop_signals();
  }
  for (int i = 0; i < count; ++i) {
    const auto source = static_cast<EventSource>(events[i].data.u64 >> 32);
    const auto index = static_cast<std::uint32_t>(events[i].data.u64);
    if (source == EventSource::kRankStream) {
      Rank& rank = ranks_[index / 2];
      (index % 2 == 0 ? rank.out : rank.err)->read_available(kReadBytesPerEvent);
    } else if (source == EventSource::kStoreStream) {
      store_streams_[index]->read_available(kReadBytesPerEvent);
    }
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].alive && !ranks_[rank].pidfd) on_rank_end(static_cast<int>(rank));
  }
}

void Job::handle_ticks() {
  const auto now = Clock::now();
  if (now >= next_tick_) {
    next_tick_ = now + kTickInterval;
    end_if_deserted();
    if (options_.on_tick) options_.on_tick();
    for (auto& [stream, key] : rank_streams()) stream->show_redraw(now);
  }
  if (now >= next_orphan_scan_) {
    // Orphans that have ended are reaped: a job of days must not fill the process table.
    next_orphan_scan_ = now + kOrphanScanInterval;
    processes_.find({});
  }
}

// A rank that has ended well without having joined will not come: those that wait for it would wait for minutes. Only
// ranks that say that they wait count, so a program that never meets through us is left alone.
void Job::end_if_deserted() {
  if (first_failure_ >= 0 || result_.stop_signal != 0) return;
  const auto meeting = [this](std::size_t rank) { return board_.meeting(static_cast<int>(rank)); };
  std::optional<std::size_t> waiting;
  for (std::size_t rank = 0; rank < ranks_.size() && !waiting; ++rank) {
    if (ranks_[rank].alive && meeting(rank) == Meeting::kWaiting) waiting = rank;
  }
  for (std::size_t rank = 0; waiting && rank < ranks_.size(); ++rank) {
    if (ranks_[rank].pid == 0 || ranks_[rank].alive || meeting(rank) != Meeting::kNone) continue;
    deserted_rank_ = static_cast<int>(*waiting);
    record_failure(static_cast<int>(rank));
    return;
  }
}

void Job::take_stop_signals() {
  while (const auto signal = signals_.take()) *signal == SIGTSTP ? pause() : on_stop_signal(*signal);
}

// Ctrl-Z: all of the job stops with us, and goes on when we do. The guard never stops: should we be killed meanwhile,
// it ends the others. A process that is being started while the list is read shows up in the next one.
void Job::pause() {
  const auto begin = Clock::now();
  std::map<int, host::ProcessInfo> stopped;
  for (bool found_more = true; found_more;) {
    found_more = false;
    for (const auto& process : processes_.find({guard_->group()})) {
      if (process.is_zombie() || !stopped.emplace(process.pid, process).second) continue;
      found_more = host::send_signal(process, SIGSTOP) || found_more;
    }
  }
  signals_.stop_process();
  for (const auto& [pid, process] : stopped) host::send_signal(process, SIGCONT);
  const auto away = Clock::now() - begin;
  if (kill_at_) *kill_at_ += away;
  if (give_up_at_) *give_up_at_ += away;
}

void Job::on_stop_signal(int signal) {
  const std::string name = host::signal_name(signal);
  if (result_.stop_signal != 0 || first_failure_ >= 0 || asked_leftovers_) {
    if (!killed_) notice(text("got ", name, " while stopping: killing what is left"));
    kill_everything();
    return;
  }
  result_.stop_signal = signal;
  kill_at_ = Clock::now() + options_.grace_after_stop;
  notice(text("got ", name, signal == SIGHUP ? " (the terminal went away)" : "", ": stopping the ranks, up to ",
              format_duration(options_.grace_after_stop), "; a second signal kills them at once"));
  signal == SIGINT ? interrupt_group() : signal_ranks(SIGTERM);
}

void Job::on_rank_end(int index) {
  Rank& rank = ranks_[static_cast<std::size_t>(index)];
  int status = 0;
  if (!rank.alive || ::waitpid(rank.pid, &status, WNOHANG) != rank.pid) return;
  rank.alive = false;
  rank.pidfd.reset();
  processes_.remove(rank.pid);
  if (WIFSIGNALED(status)) {
    rank.signal = WTERMSIG(status);
  } else {
    rank.exit_code = WEXITSTATUS(status);
  }
  rank.out->read_available(kDrainBytes);
  rank.err->read_available(kDrainBytes);
  if (rank.exit_code != 0) rank.refusal = take_refusal(attempt_folder_ / text(index));
  if ((rank.signal != 0 || rank.exit_code != 0) && result_.stop_signal == 0) record_failure(index);
}

void Job::advance() {
  const auto now = Clock::now();
  if (killed_ && now >= *give_up_at_) {
    for (const auto& process : processes_.find({guard_->group(), store_ ? store_->pid : 0})) {
      warn(
          text("process ", process.pid, " (state ", process.state, ") does not end after SIGKILL: left to the kernel"));
    }
    done_ = true;
    return;
  }
  if (kill_at_ && now >= *kill_at_ && !killed_) kill_everything();
  if (!any_rank_alive()) end_leftovers();
}

// All ranks are gone; what they started may not be.
void Job::end_leftovers() {
  const auto leftovers = processes_.find({guard_->group(), store_ ? store_->pid : 0});
  if (leftovers.empty()) {
    done_ = true;
    return;
  }
  if (killed_) {
    kill_everything();
  } else if (!asked_leftovers_) {
    asked_leftovers_ = true;
    notice(text("ending ", leftovers.size(), leftovers.size() == 1 ? " process" : " processes",
                " that the ranks left behind"));
    for (const auto& process : leftovers) host::send_signal(process, SIGTERM);
    const auto deadline = Clock::now() + options_.grace_after_failure;
    if (!kill_at_) kill_at_ = deadline;
  }
}

bool Job::any_rank_alive() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.alive; });
}

void Job::signal_ranks(int signal) {
  for (auto& rank : ranks_) {
    // An unreaped child keeps its pid, so this cannot hit anybody else.
    if (rank.alive && ::kill(rank.pid, signal) == 0) rank.signal_sent = signal;
  }
}

// As the terminal does on Ctrl-C: to the whole group, since a shell that wraps the program does not end on a SIGINT
// that its foreground child did not get too. Not to the store: ranks that save before they end may need it. The list
// comes first: what a rank starts in answer to its SIGINT must not get one of its own.
void Job::interrupt_group() {
  std::set<int> except{guard_->group(), store_ ? store_->pid : 0};
  for (const auto& rank : ranks_) except.insert(rank.pid);
  const auto helpers = processes_.find(except);
  signal_ranks(SIGINT);
  for (const auto& process : helpers) {
    if (process.group == guard_->group()) host::send_signal(process, SIGINT);
  }
}

void Job::kill_everything() {
  if (!killed_) give_up_at_ = Clock::now() + kUnkillableAfter;
  killed_ = true;
  signal_ranks(SIGKILL);
  if (guard_) guard_->kill_group();
  for (const auto& process : processes_.find({})) host::send_signal(process, SIGKILL);
}

}  // namespace lockstep::launch
