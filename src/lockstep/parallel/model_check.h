#pragma once

#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/optim/arena.h"

namespace lockstep::parallel {

/// Compares names, shapes and types of parameters and buffers over all ranks. A collective. Throws CommError that names
/// the first difference and the rank that differs from rank 0; all ranks throw together.
void check_same_model(comm::Communicator& communicator, const optim::ParameterArena& arena,
                      const std::vector<optim::NamedTensor>& buffers);

}  // namespace lockstep::parallel
