#include "lockstep/launch/environment.h"

#include <unistd.h>

#include <algorithm>

#include "lockstep/base/rank_status.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {

std::string job_mark(const std::string& run_id) {
  return text("TORCHELASTIC_RUN_ID=", run_id);
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const JobEnvironment& job,
                                          int rank) {
  std::map<std::string, std::string> variables;
  for (const auto& entry : inherited) {
    const auto equals = entry.find('=', 1);
    if (equals != std::string::npos) variables[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  for (const auto& [name, value] : job.overlay) variables[name] = value;

  const std::string rank_text = text(rank);
  const std::string size_text = text(job.num_processes);
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) variables[name] = rank_text;
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) variables[name] = size_text;
  variables["GROUP_RANK"] = "0";
  variables["GROUP_WORLD_SIZE"] = "1";
  variables["ROLE_NAME"] = "default";
  variables["MASTER_ADDR"] = job.master_addr;
  variables["MASTER_PORT"] = text(job.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  variables["TORCHELASTIC_MAX_RESTARTS"] = "0";
  variables["TORCHELASTIC_RUN_ID"] = job.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = job.agent_serves_store ? "True" : "False";
  variables["TORCHELASTIC_ERROR_FILE"] = (job.attempt_folder / rank_text / "error.json").string();
  variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (job.omp_num_threads) variables["OMP_NUM_THREADS"] = text(*job.omp_num_threads);
  if (job.tune_openmp) {
    if (!variables.contains("GOMP_SPINCOUNT")) variables.emplace("OMP_WAIT_POLICY", "passive");
    // LibTorch takes its number of threads from MKL, which by itself makes it one a core at most.
    variables.emplace("MKL_DYNAMIC", "FALSE");
  }
  variables["LOCKSTEP_LAUNCHER"] = "1";
  variables[StatusBoard::kVariable] = text(job.status_fd);
  // A launcher inside a rank of another launcher must not hand on the outer one's socket.
  variables.erase("LOCKSTEP_STORE_FD");
  if (rank == 0 && job.store_fd >= 0) variables["LOCKSTEP_STORE_FD"] = text(job.store_fd);

  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(text(name, "=", value));
  return entries;
}

namespace {

ThreadsPerRank counted_threads(int usable_cpus, int num_ranks, std::optional<int> most) {
  const int share = std::max(1, usable_cpus / num_ranks);
  if (most && *most < share) {
    return {.value = *most,
            .message = text("OMP_NUM_THREADS=", *most, " for each rank: more threads slow steps as small as these")};
  }
  return {.value = share,
          .message = text("OMP_NUM_THREADS=", share, " for each rank: ", usable_cpus, " usable CPUs / ", num_ranks,
                          num_ranks == 1 ? " rank" : " ranks")};
}

}  // namespace

ThreadsPerRank choose_threads(const std::optional<std::string>& set_by_user, int usable_cpus, int num_ranks,
                              std::optional<int> most, bool replace_nonsense) {
  if (!set_by_user) return counted_threads(usable_cpus, num_ranks, most);
  if (!trim(*set_by_user).empty() && trim(*set_by_user) != "0") return {};
  const std::string nonsense = text("OMP_NUM_THREADS='", *set_by_user, "' is no number of threads: ");
  const std::string hint = "\nhint: unset it, or set it to 1 or more";
  ThreadsPerRank threads;
  threads.is_warning = true;
  if (replace_nonsense) {
    threads.value = counted_threads(usable_cpus, num_ranks, most).value;
    threads.message = text(nonsense, "it is taken for unset, which gives each rank ", *threads.value, hint);
  } else {
    threads.message = text(nonsense,
                           "libraries take it for unset and may start one thread for each CPU in every rank; it is "
                           "passed on unchanged",
                           hint);
  }
  return threads;
}

}  // namespace lockstep::launch
