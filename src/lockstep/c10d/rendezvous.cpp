#include "lockstep/c10d/rendezvous.h"

#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/rank_status.h"
#include "lockstep/base/text.h"
#include "lockstep/c10d/tcp_store.h"

namespace lockstep::c10d {

namespace {

// Set by our launcher for rank 0 only: a socket that already listens on MASTER_PORT.
std::optional<int> inherited_listen_fd() {
  const auto word = process_environment()("LOCKSTEP_STORE_FD");
  long long fd = -1;
  if (!word) return std::nullopt;
  if (!parse_number(*word, fd) || fd < 0)
    throw ConfigError(text("LOCKSTEP_STORE_FD='", *word, "': expected a descriptor"));
  return static_cast<int>(fd);
}

// The board on which our launcher reads that this rank waits for its peers. It counts only for the launcher's own
// world: a program that divides its ranks into worlds of its own may well go on without some of them.
std::optional<StatusBoard> board_of(const World& world) {
  auto board = StatusBoard::from_environment();
  if (board && board->num_ranks() != world.size) board.reset();
  return board;
}

}  // namespace

JobLinks connect_job(const World& world, const comm::CommOptions& options) {
  JobLinks links;
  if (world.size == 1) {
    links.communicator = comm::make_single_communicator();
    return links;
  }
  auto board = board_of(world);
  if (board) board->set_meeting(world.local_rank, Meeting::kWaiting);
  const bool serve_here = world.rank == 0 && !world.agent_serves_store;
  links.store = connect_tcp_store({.host = world.master_addr,
                                   .port = world.master_port,
                                   .serve_here = serve_here,
                                   .listen_fd = serve_here ? inherited_listen_fd() : std::nullopt,
                                   .connect_timeout = options.rendezvous_timeout});
  comm::CommOptions named = options;
  // A restarted job meets under new keys in a store that may have outlived it.
  named.name = text(options.name, ".", world.run_id, ".", world.restart_count);
  links.communicator = comm::make_shm_communicator(*links.store, world.rank, world.size, named);
  if (board) board->set_meeting(world.local_rank, Meeting::kDone);
  return links;
}

}  // namespace lockstep::c10d
