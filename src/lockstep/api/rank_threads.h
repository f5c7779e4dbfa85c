#pragma once

#include <functional>

#include "lockstep/comm/communicator.h"

namespace lockstep::api {

/// Runs `body(rank, communicator)` in `size` threads at once, ranks of one process over the local communicator, and
/// joins them. A rank whose body throws leaves its communicator, so that the others fail instead of waiting; the
/// exception that came first is rethrown here. Every thread gets usable CPUs / `size` intra-op threads, unless
/// OMP_NUM_THREADS says otherwise.
void run_rank_threads(int size, const std::function<void(int rank, comm::Communicator& communicator)>& body);

}  // namespace lockstep::api
