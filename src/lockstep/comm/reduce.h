#pragma once

#include <cstddef>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// result[i] = sources[0][i] op sources[1][i] op ... op sources[num_sources - 1][i], in that order, for i < count.
/// F16 and BF16 accumulate in fp32 and round once. Integer sums wrap. Minimum and maximum are NaN when any source is.
/// `result` overlaps no source. num_sources >= 1.
void reduce(Dtype dtype, ReduceOp op, std::byte* result, const std::byte* const* sources, int num_sources,
            std::size_t count);

}  // namespace lockstep::comm
