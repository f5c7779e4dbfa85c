#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/optim/arena.h"

namespace lockstep::parallel {

/// A contiguous span of the gradient buffer, in elements, and how many of its gradients are still to come.
struct Bucket {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int num_segments = 0;
  int pending = 0;
};

/// Cuts the arena into buckets of at most `bucket_bytes` (the first `first_bucket_bytes`; a larger parameter gets one
/// of its own) and puts the arena's tail into the last. `bucket_of_segment[s]` is the bucket of segment s.
struct BucketPlan {
  std::vector<Bucket> buckets;
  std::vector<int> bucket_of_segment;
};
BucketPlan plan_buckets(const optim::ParameterArena& arena, std::int64_t element_bytes, std::int64_t first_bucket_bytes,
                        std::int64_t bucket_bytes);

}  // namespace lockstep::parallel
