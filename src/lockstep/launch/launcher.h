#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

/// Who serves the key-value store on the socket that the launcher has bound (no port is ever raced for).
enum class StoreServer {
  kWorkerProcess,  ///< `lockstep-worker store --fd N`: for any program, Python ones too; every rank is a client
  kRankZero,       ///< rank 0 finds the listening socket in LOCKSTEP_STORE_FD and serves it: our own programs
};

struct LaunchOptions {
  std::vector<std::string> command;  ///< program and arguments, the same for every rank
  int num_processes = 1;
  int ranks_per_process = 1;  ///< threads that train at once in each process: they share its part of the CPUs
  std::optional<int> most_threads_per_rank;  ///< where more would slow the ranks down; a user's OMP_NUM_THREADS wins
  /// For ranks on our own library: an OMP_NUM_THREADS of '' or '0' is taken for unset; MKL, and with it LibTorch, takes
  /// just that number (MKL_DYNAMIC=FALSE); and OpenMP's idle threads sleep (OMP_WAIT_POLICY=passive) instead of
  /// spinning, which makes steps ten times slower where something else wants the CPUs. What the user set stays. Other
  /// programs get the user's environment as it is.
  bool tune_openmp = false;
  std::map<std::string, std::string> environment;  ///< added to every rank's
  StoreServer store_server = StoreServer::kWorkerProcess;
  std::filesystem::path worker_program;          ///< path of lockstep-worker, for kWorkerProcess
  std::string master_addr = "127.0.0.1";         ///< IPv4 address or name of this machine to bind and to tell the ranks
  std::optional<int> master_port;                ///< empty: a free one, held from the start
  std::optional<std::filesystem::path> log_dir;  ///< keeps <log_dir>/attempt_0/<rank>/{stdout.log,stderr.log} and
                                                 ///< <log_dir>/launcher.log; empty: nothing is kept
  bool prefix_output = true;                     ///< "[rank 1] " before each console line
  bool quiet_stdout = false;                     ///< ranks' stdout goes to our stderr: our stdout is a document
  std::chrono::milliseconds grace_after_failure{1000};
  std::chrono::milliseconds grace_after_stop{30000};
  std::function<void()> on_tick;  ///< called about every 100 ms, and once at the end; must leave no child process
};

struct RankFailure {
  int rank = 0;
  int pid = 0;
  int exit_code = 0;  ///< when it exited
  int signal = 0;     ///< when a signal killed it, else 0
  std::optional<std::int64_t> step;
  std::vector<std::string> last_lines;  ///< of its standard error, else of its standard output
};

struct LaunchResult {
  int exit_code = 0;    ///< 0; the first failing rank's code or 128+signal; 128+signal of a stop request
  int stop_signal = 0;  ///< SIGINT, SIGTERM, SIGHUP, SIGQUIT when one asked us to stop
  std::optional<RankFailure> first_failure;
};

/// Starts the ranks of one job on this host with torchrun's worker environment, watches them, and returns when every
/// process of the job is gone. Prints each rank's lines, and on a failure the fixed line
///   lockstep: rank 1 (host H, pid P) failed first: killed by SIGKILL at step S
/// with the rank's last lines. What ranks hand over as a refusal before their first step (base/rank_status.h) is
/// printed once instead, without a rank.
///
/// A job is the ranks and all that they start, daemons too. It ends when every rank has ended; what is left then gets
/// SIGTERM, and SIGKILL after the grace. When a rank fails the others get SIGTERM, and SIGKILL after
/// `grace_after_failure`. A rank that ends with 0 before it has joined its job (base/rank_status.h) while another waits
/// for it counts as failed; the exit code is then 1. A SIGINT, SIGTERM, SIGHUP or SIGQUIT to this process asks the
/// ranks to stop (by SIGINT to the whole job for SIGINT, by SIGTERM for the others), with SIGKILL after
/// `grace_after_stop`; a second one kills at once. A SIGTSTP (Ctrl-Z) stops the job with this process, and it
/// goes on with it. When this process is killed the job is killed with it. Processes that are not the job's, this
/// process's earlier children among them, are never signalled.
///
/// Must be called from a process with one thread. Takes over the stop signals and becomes a child subreaper for its
/// duration, and restores both. Throws ConfigError (program not found or not executable, port in use), SystemError;
/// nothing is left running then.
LaunchResult launch(const LaunchOptions& options);

}  // namespace lockstep::launch
