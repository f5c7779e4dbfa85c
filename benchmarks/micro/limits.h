#pragma once

namespace lockstep::benchmarks {

/// What one core of this machine can do, measured (best of several short runs, in CPU time) on first use.
struct Limits {
  double float_fma_per_second;   ///< fused multiply-adds in float vectors of the widest kind
  double bytes_per_second_l2;    ///< copying inside the second-level cache, read and written bytes
  double bytes_per_second_dram;  ///< copying between regions that fit no cache
};
const Limits& limits();

}  // namespace lockstep::benchmarks
