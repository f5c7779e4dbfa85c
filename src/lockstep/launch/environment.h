#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/world.h"

namespace lockstep::launch {

/// What all ranks of a job share.
struct JobEnvironment {
  int num_processes = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool agent_serves_store = false;  ///< TORCHELASTIC_USE_AGENT_STORE
  std::string run_id;
  std::filesystem::path attempt_folder;        ///< holds <rank>/error.json
  int status_fd = -1;                          ///< LOCKSTEP_STATUS_FD
  int store_fd = -1;                           ///< LOCKSTEP_STORE_FD, for rank 0; -1: none
  std::optional<int> omp_num_threads;          ///< nullopt: the user's own value stands
  bool tune_openmp = false;                    ///< LaunchOptions::tune_openmp
  std::map<std::string, std::string> overlay;  ///< LaunchOptions::environment
};

/// "TORCHELASTIC_RUN_ID=<run_id>": unique to the job and in the environment of each of its processes.
std::string job_mark(const std::string& run_id);

/// The complete environment of one rank: `inherited` ("NAME=value" each), the overlay on it, and torchrun's worker
/// variables over both.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const JobEnvironment& job,
                                          int rank);

/// The environment of this process.
std::vector<std::string> inherited_environment();

/// OMP_NUM_THREADS of the ranks and what to tell the user about it.
struct ThreadsPerRank {
  std::optional<int> value = std::nullopt;  ///< to be set; nullopt: a user's value is there and stays
  std::string message = {};                 ///< empty: nothing to say
  bool is_warning = false;
};

/// floor(usable_cpus / num_ranks), at least 1 and at most `most`, unless `set_by_user` is something. A user's number is
/// never changed; '' and '0' are flagged, and with `replace_nonsense` taken for unset: OpenMP would do the same, but
/// complain in every process.
ThreadsPerRank choose_threads(const std::optional<std::string>& set_by_user, int usable_cpus, int num_ranks,
                              std::optional<int> most = std::nullopt, bool replace_nonsense = false);

}  // namespace lockstep::launch
