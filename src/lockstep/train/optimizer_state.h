#pragma once

#include <string_view>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::train {

/// The whole optimizer state by parameter, "<parameter>.<state name>" (fc1.weight.exp_avg) in the parameter's shape and
/// "<parameter>.step" (int64, []), whatever the sharding. [all ranks]
std::vector<optim::NamedTensor> gather_optimizer_state(const optim::Optimizer& optimizer,
                                                       const optim::ParameterArena& arena,
                                                       comm::Communicator& communicator);

/// Takes this rank's part of such a state over; `optimizer` is bound. The mapping is by name, so world size and
/// sharding may differ from those at the save. Throws CheckpointError that names `origin` and the first tensor that is
/// missing, unexpected or of another shape, with nothing changed.
void load_optimizer_state(optim::Optimizer& optimizer, const optim::ParameterArena& arena,
                          const std::vector<optim::NamedTensor>& tensors, std::string_view origin);

}  // namespace lockstep::train
