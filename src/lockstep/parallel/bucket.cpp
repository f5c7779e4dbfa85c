#include "lockstep/parallel/bucket.h"

namespace lockstep::parallel {

BucketPlan plan_buckets(const optim::ParameterArena& arena, std::int64_t element_bytes, std::int64_t first_bucket_bytes,
                        std::int64_t bucket_bytes) {
  BucketPlan plan;
  for (const auto& segment : arena.segments()) {
    const std::int64_t limit_bytes = plan.buckets.size() <= 1 ? first_bucket_bytes : bucket_bytes;
    const std::int64_t end = segment.offset + segment.numel;
    if (plan.buckets.empty() || (end - plan.buckets.back().begin) * element_bytes > limit_bytes) {
      if (!plan.buckets.empty()) plan.buckets.back().end = segment.offset;
      plan.buckets.push_back({segment.offset, end, 0, 0});
    }
    plan.buckets.back().end = end;
    ++plan.buckets.back().num_segments;
    plan.bucket_of_segment.push_back(static_cast<int>(plan.buckets.size()) - 1);
  }
  plan.buckets.back().end = arena.numel() + optim::ParameterArena::kTailElements;
  return plan;
}

}  // namespace lockstep::parallel
