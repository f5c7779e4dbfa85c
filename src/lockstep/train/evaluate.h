#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/communicator.h"
#include "lockstep/data/loader.h"

namespace lockstep::train {

struct EvaluationResult {
  double loss = 0;      ///< mean cross entropy over all samples
  double accuracy = 0;  ///< 0 to 1
  std::int64_t correct = 0;
  std::int64_t samples = 0;
};

/// Exact evaluation: each sample of the data set counts once whatever the world size; sums and counts are reduced, not
/// means. The losses are taken in double precision and summed batch by batch in the order of the data set, so the
/// result is one number for every world size, as far as `forward` gives one for equal batches. `forward` gives logits
/// [N, classes] for inputs [N, C, H, W]; no graph is recorded. `loader` is Loader::for_evaluation's and serves this
/// rank's share. A collective when `communicator` has several ranks.
EvaluationResult evaluate(data::Loader& loader, const std::function<at::Tensor(const at::Tensor&)>& forward,
                          comm::Communicator& communicator);

}  // namespace lockstep::train
