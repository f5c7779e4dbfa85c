#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/engine.h"
#include "lockstep/comm/store.h"

namespace lockstep::comm {

/// What a rank holds once all ranks of a communicator have met.
struct Meeting {
  std::shared_ptr<Segment> segment;
  std::vector<PeerSocket> peers;  ///< rank 0: to every other rank; the others: to rank 0
};

/// Gives all ranks the same shared memory. Rank 0 makes a memory file and listens on a Unix socket in the abstract
/// name space; the others find its name and the job's nonce in the store, connect, prove the nonce and receive the
/// memory's descriptor. Succeeding is what "on the same host" means here. The nonce guards against mixed-up jobs, not
/// against attackers. Afterwards nothing listens, and nothing is left in a file system.
///
/// A communicator may be made again under the same name: the store counts how often each rank has come.
/// Throws CommError (not on one host, a rank ended meanwhile, another job's memory), TimeoutError naming who is
/// missing.
Meeting meet(Store& store, int rank, int size, const CommOptions& options);

}  // namespace lockstep::comm
