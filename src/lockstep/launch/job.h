#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/rank_status.h"
#include "lockstep/launch/guard.h"
#include "lockstep/launch/job_processes.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/signals.h"
#include "lockstep/launch/store.h"

namespace lockstep::launch {

/// One run of launch(): a single-threaded event loop over the ranks' pidfds and pipes and our stop signals.
///
///   running --a rank fails, or a stop signal--> stopping --all ranks gone--> ending --no process of the job left-->
///   done
///      \------------------------------all ranks gone-----------------------^
class Job {
 public:
  /// Makes what the ranks need: folders, guard, socket. Starts no rank. Throws ConfigError, SystemError.
  explicit Job(const LaunchOptions& options);

  /// Kills what still runs: after an exception nothing is left.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Starts the store and the ranks; stops early when a stop signal comes in.
  void start();

  /// Runs until every process of the job is gone.
  LaunchResult watch();

 private:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    int pid = 0;
    UniqueFd pidfd;
    bool alive = false;
    int exit_code = 0;
    int signal = 0;                      ///< that killed it, or 0
    bool was_exiting = false;            ///< was on its way out already when the first failure was seen
    int signal_sent = 0;                 ///< the last one that we sent it
    std::optional<std::string> refusal;  ///< what it handed over before it exited
    std::unique_ptr<RankStream> out;
    std::unique_ptr<RankStream> err;
  };

  struct RemovedAtEnd {
    std::filesystem::path path;
    ~RemovedAtEnd();
  };

  enum class EventSource : std::uint32_t { kSignals, kRankEnd, kRankStream, kStoreStream, kConsole };

  // job_start.cpp
  void prepare_folders();
  void start_store_server();
  void start_rank(int rank);
  std::vector<std::string> environment_of(int rank) const;
  void announce_threads();

  // job.cpp: the event loop
  void wait_for_events();
  Clock::time_point next_wakeup() const;
  void watch_descriptor(int fd, EventSource source, int index, std::uint32_t events);
  void update_console_watch();
  void update_reading();
  std::vector<std::pair<RankStream*, int>> rank_streams();
  void handle_ticks();
  void end_if_deserted();
  void take_stop_signals();
  void on_stop_signal(int signal);
  void pause();
  void on_rank_end(int rank);
  void advance();
  void end_leftovers();
  bool any_rank_alive() const;
  void signal_ranks(int signal);
  void interrupt_group();
  void kill_everything();

  // job_report.cpp
  void notice(std::string_view message);
  void warn(std::string_view message);
  void record_failure(int rank);
  void report();
  void report_first_failure(RankFailure& failure);
  bool report_refusal(RankFailure& failure);
  std::string describe_end(const Rank& rank) const;
  void flush_console();

  const LaunchOptions& options_;
  std::string executable_;
  std::string run_id_;
  ConsoleStream console_out_;
  ConsoleStream console_err_;
  UniqueFd launcher_log_;
  StopSignals signals_;
  RemovedAtEnd temporary_folder_;  ///< error files of a job without log_dir
  std::filesystem::path attempt_folder_;
  JobProcesses processes_;
  std::optional<Guard> guard_;
  ListeningSocket socket_;
  StatusBoard board_;
  bool agent_serves_store_ = false;
  std::optional<int> omp_num_threads_;

  UniqueFd epoll_;
  std::vector<Rank> ranks_;
  std::optional<StoreProcess> store_;
  std::vector<std::unique_ptr<RankStream>> store_streams_;
  bool reading_paused_ = false;
  bool console_watched_[2] = {false, false};

  Clock::time_point next_tick_{};
  Clock::time_point next_orphan_scan_{};
  std::optional<Clock::time_point> kill_at_;     ///< when stopping turns into killing
  std::optional<Clock::time_point> give_up_at_;  ///< when what SIGKILL did not end is left to the kernel
  bool killed_ = false;
  bool asked_leftovers_ = false;
  int leftovers_ended_ = 0;
  bool done_ = false;
  int first_failure_ = -1;
  int deserted_rank_ = -1;  ///< that waits for `first_failure_`, which ended well without joining; or -1
  LaunchResult result_;
};

}  // namespace lockstep::launch
