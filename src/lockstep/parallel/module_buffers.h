#pragma once

#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/optim/arena.h"

namespace lockstep::parallel {

/// Gives every rank rank 0's values, one collective a type. [all ranks]
void broadcast_tensors(comm::Communicator& communicator, const std::vector<optim::NamedTensor>& tensors);

/// Floating-point tensors become the mean over ranks, the others rank 0's. [all ranks]
void average_tensors(comm::Communicator& communicator, const std::vector<optim::NamedTensor>& tensors);

}  // namespace lockstep::parallel
