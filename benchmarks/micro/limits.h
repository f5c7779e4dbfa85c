#pragma once

namespace lockstep::benchmarks {

/// What one core of this machine can do, measured (best of several short runs) on first use.
struct Limits {
  double float_fma_per_second;   ///< fused multiply-adds in float vectors of the widest kind
  double bytes_per_second_l2;    ///< read + write of a buffer that stays in the second-level cache
  double bytes_per_second_dram;  ///< the same for one that does not fit any cache
};
const Limits& limits();

}  // namespace lockstep::benchmarks
