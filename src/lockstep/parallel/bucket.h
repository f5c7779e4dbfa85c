#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/optim/arena.h"

namespace lockstep::parallel {

/// A contiguous span of one gradient buffer, in elements, and the segments (in layout order) that lie in it.
struct Bucket {
  int buffer = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<int> segments;
};

struct BucketOptions {
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  ///< small, so that the first reduction starts early
  std::int64_t bucket_bytes = std::int64_t{25} << 20;       ///< a larger parameter gets a bucket of its own
  int num_shards = 1;  ///< every bucket's length becomes a multiple of this, in whole 64-byte lines a shard
};

/// Buckets in the order in which they become ready, and the arena layout that makes each of them one span.
struct BucketPlan {
  optim::ArenaLayout layout;
  std::vector<Bucket> buckets;
  std::vector<int> bucket_of_segment;  ///< by place in the layout
};

/// Cuts the parameters into buckets, taking them in `order` (model indices; the order in which gradients become ready).
/// Parameters of different types never share a bucket.
BucketPlan plan_buckets(const optim::ParameterArena& arena, const std::vector<int>& order,
                        const BucketOptions& options);

/// The order in which the arena's segments lie now.
std::vector<int> layout_order(const optim::ParameterArena& arena);

}  // namespace lockstep::parallel
