#include "lockstep/parallel/bucket.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

namespace {

// The bucket of one type that is still being filled.
struct OpenBucket {
  bool is_open = false;
  std::int64_t size_bytes = 0;
  Bucket bucket;
};

}  // namespace

BucketPlan plan_buckets(const optim::ParameterArena& arena, const std::vector<int>& order,
                        const BucketOptions& options) {
  std::vector<const optim::Segment*> by_index(order.size());
  for (const auto& segment : arena.segments()) by_index[static_cast<std::size_t>(segment.index)] = &segment;

  BucketPlan plan;
  plan.layout.order = order;
  plan.layout.numel.assign(arena.buffers().size(), 0);
  plan.bucket_of_segment.assign(order.size(), -1);
  std::vector<OpenBucket> open(arena.buffers().size());

  const auto close = [&](std::size_t b) {
    auto& [is_open, size_bytes, bucket] = open[b];
    if (!is_open) return;
    // Padded at its end, so that it splits into equal shards of whole lines.
    const auto element_bytes = static_cast<std::int64_t>(arena.buffers()[b].values.element_size());
    const std::int64_t unit = options.num_shards * optim::aligned_numel(1, element_bytes);
    bucket.end = bucket.begin + (plan.layout.numel[b] - bucket.begin + unit - 1) / unit * unit;
    plan.layout.numel[b] = bucket.end;
    for (const int segment : bucket.segments) {
      plan.bucket_of_segment[static_cast<std::size_t>(segment)] = static_cast<int>(plan.buckets.size());
    }
    plan.buckets.push_back(std::move(bucket));
    is_open = false;
  };

  for (std::size_t s = 0; s < order.size(); ++s) {
    const auto& segment = *by_index[static_cast<std::size_t>(order[s])];
    const auto b = static_cast<std::size_t>(segment.buffer);
    const auto element_bytes = static_cast<std::int64_t>(segment.parameter.element_size());
    const auto segment_bytes = segment.numel * element_bytes;
    const std::int64_t limit_bytes = plan.buckets.empty() ? options.first_bucket_bytes : options.bucket_bytes;
    if (open[b].is_open && open[b].size_bytes + segment_bytes > limit_bytes) close(b);
    if (!open[b].is_open) {
      open[b] = {true, 0, {.buffer = segment.buffer, .begin = plan.layout.numel[b], .end = 0, .segments = {}}};
    }
    plan.layout.offset.push_back(plan.layout.numel[b]);
    plan.layout.numel[b] += optim::aligned_numel(segment.numel, element_bytes);
    open[b].size_bytes += segment_bytes;
    open[b].bucket.segments.push_back(static_cast<int>(s));
  }
  // What is left closes in the order of its last segment; one type: the last bucket of the plan.
  std::vector<std::size_t> rest;
  for (std::size_t b = 0; b < open.size(); ++b) {
    if (open[b].is_open) rest.push_back(b);
  }
  std::sort(rest.begin(), rest.end(), [&](std::size_t a, std::size_t b) {
    return open[a].bucket.segments.back() < open[b].bucket.segments.back();
  });
  for (const auto b : rest) close(b);
  LOCKSTEP_CHECK(!plan.buckets.empty());
  return plan;
}

std::vector<int> layout_order(const optim::ParameterArena& arena) {
  std::vector<int> order;
  for (const auto& segment : arena.segments()) order.push_back(segment.index);
  return order;
}

}  // namespace lockstep::parallel
