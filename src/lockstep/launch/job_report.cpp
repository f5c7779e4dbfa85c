// What a job tells the user: notices, the first failure, how the ranks ended.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "lockstep/base/text.h"
#include "lockstep/host/process.h"
#include "lockstep/launch/job.h"

namespace lockstep::launch {

namespace {

// How long a reader of our output may do nothing after a failed or stopped job before the rest is dropped.
constexpr auto kReaderPatience = std::chrono::seconds(5);

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

// Signals that end a rank on its own account, never because a peer was lost: exceptions raise SIGABRT.
bool is_hard_death(int signal) {
  return signal == SIGKILL || signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE;
}

// Bytes of a program's output that are repeated in our own words: control characters would act on the terminal.
std::string printable(std::string line) {
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' && c != '\t') c = '?';
  }
  return line;
}

}  // namespace

void Job::notice(std::string_view message) {
  const std::string line = text("lockstep: ", message, "\n");
  console_err_.push(line);
  // A full disk must not stop the job that is being reported on.
  if (launcher_log_ && !try_write_all(launcher_log_.get(), line)) launcher_log_.reset();
}

void Job::warn(std::string_view message) {
  notice(text("warning: ", message));
}

// Decides which rank failed first, and has the others stopped.
//
// The order of the exits is nearly the order of the faults. The exception: a rank that is killed closes its sockets
// before the kernel reports its end, which takes long with GPU memory; a peer may see the closed socket and exit with
// an error in between. So a rank that was already on its way out then, and turns out to have died hard, comes first.
void Job::record_failure(int index) {
  Rank& rank = ranks_[static_cast<std::size_t>(index)];
  if (first_failure_ >= 0) {
    if (rank.was_exiting && is_hard_death(rank.signal) &&
        !is_hard_death(ranks_[static_cast<std::size_t>(first_failure_)].signal)) {
      first_failure_ = index;
    }
    return;
  }
  first_failure_ = index;
  for (auto& other : ranks_) {
    const auto state = other.alive ? host::read_process(other.pid) : std::nullopt;
    other.was_exiting = state && state->exiting;
  }
  kill_at_ = Clock::now() + options_.grace_after_failure;
  signal_ranks(SIGTERM);
}

std::string Job::describe_end(const Rank& rank) const {
  return rank.signal != 0 ? text("killed by ", host::signal_name(rank.signal)) : text("exited with ", rank.exit_code);
}

void Job::report() {
  if (first_failure_ < 0) {
    result_.exit_code = result_.stop_signal != 0 ? 128 + result_.stop_signal : 0;
    return;
  }
  RankFailure failure;
  if (!report_refusal(failure)) report_first_failure(failure);
  result_.first_failure = std::move(failure);
}

// Input that a rank refuses before its first step is refused by all: one message, without a rank, is what the user
// needs. A peer that lost its connection to the refusing rank may have ended a moment before it.
bool Job::report_refusal(RankFailure& failure) {
  if (is_hard_death(ranks_[static_cast<std::size_t>(first_failure_)].signal)) return false;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    if (!rank.refusal || board_.step(static_cast<int>(i)) >= 0) continue;
    notice(text("error: ", *rank.refusal));
    failure.rank = static_cast<int>(i);
    failure.pid = rank.pid;
    failure.exit_code = result_.exit_code = rank.exit_code;
    failure.last_lines = split(*rank.refusal, '\n');
    return true;
  }
  return false;
}

void Job::report_first_failure(RankFailure& failure) {
  const Rank& rank = ranks_[static_cast<std::size_t>(first_failure_)];
  failure.rank = first_failure_;
  failure.pid = rank.pid;
  failure.exit_code = rank.exit_code;
  failure.signal = rank.signal;
  if (const auto step = board_.step(first_failure_); step >= 0) failure.step = step;
  const bool has_errors = rank.refusal || !rank.err->last_lines().empty();
  const auto& lines = has_errors ? rank.err->last_lines() : rank.out->last_lines();
  failure.last_lines.assign(lines.begin(), lines.end());
  if (rank.refusal) failure.last_lines = split(text("lockstep: error: ", *rank.refusal), '\n');

  notice(
      text("rank ", failure.rank, " (host ", host_name(), ", pid ", failure.pid, ") failed first: ", describe_end(rank),
           failure.step ? text(" at step ", *failure.step) : "",
           deserted_rank_ >= 0 ? text(" without joining the job, while rank ", deserted_rank_, " waits for it") : ""));
  if (!failure.last_lines.empty()) {
    notice(text("the last lines of its standard ", has_errors ? "error" : "output", ":"));
    for (const auto& line : failure.last_lines) notice(text("    ", printable(line)));
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& other = ranks_[i];
    if (static_cast<int>(i) == first_failure_ || other.pid == 0) continue;
    if (other.signal_sent != 0) {
      notice(text("rank ", i, " (pid ", other.pid, "): ended by us (", describe_end(other), " after ",
                  host::signal_name(other.signal_sent), ")"));
    } else if (other.signal != 0 || other.exit_code != 0) {
      notice(text("rank ", i, " (pid ", other.pid, "): failed afterwards (", describe_end(other), ")"));
    }
  }
  result_.exit_code = rank.signal != 0 ? 128 + rank.signal : std::max(1, rank.exit_code);
}

void Job::flush_console() {
  auto last_progress = Clock::now();
  const bool is_patient = first_failure_ < 0 && result_.stop_signal == 0;
  for (;;) {
    const bool progress_out = console_out_.flush();
    const bool progress_err = console_err_.flush();
    if (console_out_.pending_bytes() + console_err_.pending_bytes() == 0) return;
    const auto now = Clock::now();
    if (progress_out || progress_err) last_progress = now;
    if (!is_patient && now - last_progress > kReaderPatience) return;
    pollfd fds[] = {{signals_.fd(), POLLIN, 0}, {-1, POLLOUT, 0}, {-1, POLLOUT, 0}};
    if (console_out_.pending_bytes() > 0) fds[1].fd = console_out_.fd();
    if (console_err_.pending_bytes() > 0) fds[2].fd = console_err_.fd();
    ::poll(fds, 3, 200);
    if (const auto signal = signals_.take(); signal == SIGTSTP) {
      signals_.stop_process();
    } else if (signal) {
      if (result_.exit_code == 0) {
        result_.stop_signal = *signal;
        result_.exit_code = 128 + *signal;
      }
      return;
    }
  }
}

}  // namespace lockstep::launch
