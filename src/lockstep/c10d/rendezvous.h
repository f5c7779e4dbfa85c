#pragma once

#include <memory>

#include "lockstep/base/world.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/store.h"

namespace lockstep::c10d {

/// A rank's links to its job. The store outlives the communicator; both are gone when the job is left.
struct JobLinks {
  std::unique_ptr<comm::Store> store;  ///< null for a world of one
  std::unique_ptr<comm::Communicator> communicator;
};

/// Meets the other ranks of `world`: through the TCPStore at master_addr:master_port, served by the launcher, by
/// torchrun's agent, or by rank 0 (on the socket in LOCKSTEP_STORE_FD, or on one of its own). Ranks of one host then
/// talk through shared memory. Shows our launcher that it waits and that it has met, so that a job in which a rank ends
/// without coming is ended at once. Throws CommError, TimeoutError.
JobLinks connect_job(const World& world, const comm::CommOptions& options);

}  // namespace lockstep::c10d
