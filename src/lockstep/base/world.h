#pragma once

#include <functional>
#include <optional>
#include <string>

namespace lockstep {

/// Who this process is among the processes of its job. Ranks count from 0; the device is `local_rank`, never `rank`.
struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  std::string master_addr;  ///< where the store is served; empty for a single process
  int master_port = 0;
  bool agent_serves_store = false;  ///< TORCHELASTIC_USE_AGENT_STORE: every rank, rank 0 too, is a client
  int restart_count = 0;
  std::string run_id;
  std::string source = "single process";  ///< what was detected, for the one line that says so

  bool is_main() const noexcept { return rank == 0; }
};

/// Reads a variable; nullopt when it is unset. Tests pass their own.
using EnvironmentReader = std::function<std::optional<std::string>(const char* name)>;
EnvironmentReader process_environment();

/// Reads torchrun's worker environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, ...), which
/// `lockstep run` sets too. Without RANK and WORLD_SIZE this is a single process. LOCAL_RANK may be missing only when
/// the world is one node by itself. Throws ConfigError that names the variable, its value and the accepted range when
/// they contradict each other.
World world_from_environment(const EnvironmentReader& environment);

}  // namespace lockstep
