#include "lockstep/parallel/bucketed.h"

#include <algorithm>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/model_check.h"
#include "lockstep/parallel/module_buffers.h"

namespace lockstep::parallel {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kAutoSteps = 10;  // that kAuto watches before it decides

// Places in the tail; the flags follow from ParameterArena::kNumSums on, by model index.
enum TailPlace {
  kCount,
  kLoss,
  kLossCount,
  kStop,
  kActive,
  kLossScale,
  kLossScaleSquared,
  kFailed,
  kFailedRank,
  kNumPlaces
};
static_assert(kNumPlaces <= optim::ParameterArena::kNumSums);

}  // namespace

std::vector<std::string> layout_names(const optim::ParameterArena& arena) {
  std::vector<std::string> names;
  for (const auto& segment : arena.segments()) names.push_back(segment.name);
  return names;
}

BucketedStrategy::BucketedStrategy(comm::Communicator& communicator, const DdpOptions& options, int num_shards)
    : communicator_(communicator), options_(options), num_shards_(num_shards), unused_mode_(options.unused) {}

void BucketedStrategy::attach(optim::ParameterArena& arena, const std::vector<optim::NamedTensor>& buffers) {
  check_same_model(communicator_, arena, buffers);
  arena_ = &arena;
  buffers_ = buffers;
  for (const auto& buffer : arena.buffers()) communicator_.broadcast(buffer_of(buffer.values), 0).wait();
  broadcast_tensors(communicator_, buffers_);
  readiness_ = std::make_unique<GradientReadiness>(arena);
  set_plan(layout_order(arena));
  layout_is_fixed_ = !options_.rebuild_buckets || sends_every_backward();
  counts_are_known_ = sends_every_backward();  // whose gradients cannot wait for a second look
}

void BucketedStrategy::set_plan(const std::vector<int>& order) {
  plan_ = plan_buckets(*arena_, order,
                       {.first_bucket_bytes = options_.first_bucket_bytes,
                        .bucket_bytes = options_.bucket_bytes,
                        .num_shards = num_shards_});
  arena_->apply(plan_.layout);
  readiness_->watch(plan_, on_gradient(), [this](int bucket) { send_bucket(bucket); });
  labels_ = bucket_labels();
  on_layout();
}

std::vector<std::string> BucketedStrategy::bucket_labels() const {
  std::vector<std::string> labels;
  for (const auto& bucket : plan_.buckets) {
    const auto name = [&](int segment) { return arena_->segments()[static_cast<std::size_t>(segment)].name; };
    std::string parameters = name(bucket.segments.front());
    if (bucket.segments.size() > 1) parameters += text(" to ", name(bucket.segments.back()));
    labels.push_back(text("gradients, bucket ", labels.size() + 1, " of ", plan_.buckets.size(), ": ", parameters));
  }
  return labels;
}

void BucketedStrategy::fix_layout(const std::vector<std::string>& names) {
  std::vector<int> order;
  for (const auto& name : names) {
    for (const auto& segment : arena_->segments()) {
      if (segment.name == name) order.push_back(segment.index);
    }
  }
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  const bool is_permutation =
      sorted.size() == arena_->segments().size() && std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (!is_permutation || names.size() != order.size()) {
    throw CheckpointError("the saved layout does not name this model's parameters, each once");
  }
  set_plan(order);
  layout_is_fixed_ = true;
}

void BucketedStrategy::begin_backward(bool last, const StepSums& local) {
  using Mode = GradientReadiness::Mode;
  if (sends_every_backward()) {
    readiness_->flush();  // what the micro-batch before left over
    wait_for_exchange();
  }
  is_last_ = last;
  is_in_backward_ = true;
  local_ = local;
  if (!last && !sends_every_backward()) return readiness_->begin_backward(Mode::kAccumulate);
  readiness_->begin_backward(layout_is_fixed_ && counts_are_known_ ? Mode::kSend : Mode::kRecord);
}

// Rank 0's order holds for all: rank by rank it may differ, and buckets must pair.
std::vector<int> BucketedStrategy::agree_on_order() {
  const auto mine = readiness_->ready_order();
  auto order = at::empty({static_cast<std::int64_t>(mine.size())}, at::kLong);
  std::copy(mine.begin(), mine.end(), order.mutable_data_ptr<std::int64_t>());
  communicator_.broadcast(buffer_of(order), 0).wait();
  const auto* agreed = order.const_data_ptr<std::int64_t>();
  return {agreed, agreed + mine.size()};
}

StepSums BucketedStrategy::finish() {
  const Clock::time_point start = Clock::now();
  is_in_backward_ = false;
  if (counts_are_known_) {
    readiness_->flush();
  } else {
    // The first backward only took notes. Nothing has been sent: the arena may still be rearranged.
    if (!layout_is_fixed_) {
      const auto order = agree_on_order();
      if (order != layout_order(*arena_)) set_plan(order);
      layout_is_fixed_ = true;
    }
    // A backward that threw has not seen all gradients: this rank looks again in its next step.
    counts_are_known_ = local_.failed == 0;
    if (counts_are_known_) readiness_->expect_last_counts(1);
    for (std::size_t b = 0; b < plan_.buckets.size(); ++b) send_bucket(static_cast<int>(b));
  }
  if (!tail_in_last_bucket()) send_tail();
  wait_for_exchange();
  statistics_.waiting += Clock::now() - start;
  if (options_.static_graph && !static_counts_are_known_ && local_.failed == 0) {
    readiness_->expect_last_counts(0);  // zero2 sends from the first step on and learns only now
    static_counts_are_known_ = true;
  }
  StepSums sums = read_tail();
  readiness_->end_step();
  return sums;
}

void BucketedStrategy::send_bucket(int index) {
  const bool with_tail = is_last_ && tail_in_last_bucket() && index + 1 == static_cast<int>(plan_.buckets.size());
  const Clock::time_point start = Clock::now();
  if (with_tail) write_tail();
  if (works_.size() >= max_in_flight()) {
    works_.front().wait();
    works_.erase(works_.begin());
  }
  const Bucket& bucket = plan_.buckets[static_cast<std::size_t>(index)];
  communicator_.label(labels_[static_cast<std::size_t>(index)]);
  works_.push_back(send(bucket, index, with_tail));
  communicator_.label({});
  communicator_.progress();
  const auto& values = arena_->buffers()[static_cast<std::size_t>(bucket.buffer)].values;
  statistics_.bytes += (bucket.end - bucket.begin) * static_cast<std::int64_t>(values.element_size());
  if (is_in_backward_) statistics_.in_backward += Clock::now() - start;
}

void BucketedStrategy::send_tail() {
  write_tail();
  communicator_.label("the step's sums");
  works_.push_back(communicator_.all_reduce(buffer_of(arena_->tail()), comm::ReduceOp::kSum));
  communicator_.label({});
}

void BucketedStrategy::wait_for_exchange() {
  for (auto& work : works_) work.wait();
  works_.clear();
}

// Called when backward is over or all its gradients are there, so the flags are those of the whole step.
void BucketedStrategy::write_tail() {
  const auto& tail = arena_->tail();
  AT_DISPATCH_FLOATING_TYPES(tail.scalar_type(), "tail", [&] {
    auto* values = tail.mutable_data_ptr<scalar_t>();
    values[kCount] = static_cast<scalar_t>(local_.count);
    values[kLoss] = static_cast<scalar_t>(local_.loss);
    values[kLossCount] = static_cast<scalar_t>(local_.loss_count);
    values[kStop] = static_cast<scalar_t>(local_.stop ? 1 : 0);
    values[kActive] = static_cast<scalar_t>(local_.active);
    values[kLossScale] = static_cast<scalar_t>(local_.loss_scale);
    values[kLossScaleSquared] = static_cast<scalar_t>(local_.loss_scale * local_.loss_scale);
    values[kFailed] = static_cast<scalar_t>(local_.failed);
    values[kFailedRank] = static_cast<scalar_t>(local_.failed * rank());
    for (std::size_t i = 0; i < arena_->segments().size(); ++i) {
      values[optim::ParameterArena::kNumSums + i] = static_cast<scalar_t>(readiness_->was_used(static_cast<int>(i)));
    }
  });
}

StepSums BucketedStrategy::read_tail() {
  const auto& tail = arena_->tail();
  StepSums sums;
  std::vector<double> flags;
  std::pair<double, double> scales;
  AT_DISPATCH_FLOATING_TYPES(tail.scalar_type(), "tail", [&] {
    const auto* values = tail.const_data_ptr<scalar_t>();
    sums.count = static_cast<double>(values[kCount]);
    sums.loss = static_cast<double>(values[kLoss]);
    sums.loss_count = static_cast<double>(values[kLossCount]);
    sums.stop = values[kStop] > 0;
    sums.active = static_cast<double>(values[kActive]);
    sums.failed = static_cast<double>(values[kFailed]);
    if (sums.failed == 1) sums.failed_rank = static_cast<int>(values[kFailedRank]);
    scales = {static_cast<double>(values[kLossScale]), static_cast<double>(values[kLossScaleSquared])};
    flags.assign(values + optim::ParameterArena::kNumSums, values + tail.numel());
  });
  sums.loss_scale = local_.loss_scale;
  check_loss_scales(scales.first, scales.second);
  if (sums.active > 0 && sums.failed == 0) judge_unused(sums, flags);
  return sums;
}

// n * (sum of squares) equals (sum)^2 only when all are equal; scales are powers of two, whose sums are exact. All
// ranks see the same sums, so either none goes in here or all do.
void BucketedStrategy::check_loss_scales(double sum, double sum_of_squares) {
  if (size() * sum_of_squares == sum * sum) return;
  std::vector<double> scales(static_cast<std::size_t>(size()));
  const double mine = local_.loss_scale;
  communicator_.all_gather({&mine, 1, comm::Dtype::kF64}, {scales.data(), scales.size(), comm::Dtype::kF64}).wait();
  std::vector<std::string> values;
  for (std::size_t r = 0; r < scales.size(); ++r) values.push_back(text("rank ", r, " has ", scales[r]));
  throw Error(text("the ranks' loss scales differ: ", join(values, ", ")),
              "load the same scaler state on all ranks; gradients of this step were dropped");
}

// flags[i]: how many ranks used the parameter with model index i. All ranks see the same and decide alike.
void BucketedStrategy::judge_unused(StepSums& sums, const std::vector<double>& flags) {
  const double fewest = *std::min_element(flags.begin(), flags.end());
  const bool some_are_missing = fewest < sums.active;
  if (options_.static_graph) {
    const auto changed = readiness_->changed_counts();
    if (!changed.empty() && local_.active > 0) {
      throw Error(
          text("static graph: rank ", rank(), " used ", join(changed, ", "), " otherwise than in the first step"),
          "switch static_graph off for a model that chooses its path by the data");
    }
  } else if (unused_mode_ == UnusedParameters::kOff && some_are_missing) {
    std::vector<std::string> missing;
    for (const auto& segment : arena_->segments()) {
      const double used_by = flags[static_cast<std::size_t>(segment.index)];
      if (used_by < sums.active) {
        missing.push_back(text(segment.name, " (used by ", used_by, " of ", sums.active, " ranks)"));
      }
    }
    throw Error(text("no gradient came for ", join(missing, ", "), " in this step, though every parameter is used"),
                "set the option unused to kOn if the model leaves out parameters by design; a tensor that was assigned "
                "to a layer after the engine was made is not trained: make the engine after such changes");
  } else if (unused_mode_ == UnusedParameters::kAuto) {
    some_were_unused_ = some_were_unused_ || some_are_missing;
    if (++steps_watched_ == kAutoSteps) {
      unused_mode_ = some_were_unused_ ? UnusedParameters::kOn : UnusedParameters::kOff;
    }
  }
  if (fewest > 0) return;
  for (const auto& segment : arena_->segments()) {
    sums.unused.push_back(flags[static_cast<std::size_t>(segment.index)] == 0 ? 1 : 0);
  }
}

ExchangeStatistics BucketedStrategy::statistics() const {
  ExchangeStatistics statistics = statistics_;
  for (const auto& bucket : plan_.buckets) {
    const auto& values = arena_->buffers()[static_cast<std::size_t>(bucket.buffer)].values;
    BucketInfo info{.bytes = (bucket.end - bucket.begin) * static_cast<std::int64_t>(values.element_size()),
                    .parameters = {}};
    for (const int segment : bucket.segments) {
      info.parameters.push_back(arena_->segments()[static_cast<std::size_t>(segment)].name);
    }
    statistics.buckets.push_back(std::move(info));
  }
  return statistics;
}

double BucketedStrategy::broadcast(double value) {
  communicator_.broadcast({&value, 1, comm::Dtype::kF64}, 0).wait();
  return value;
}

void BucketedStrategy::publish() {
  publish_values();
  if (options_.buffers == BufferSync::kNone || buffers_.empty()) return;
  if (options_.buffers == BufferSync::kMean) return average_tensors(communicator_, buffers_);
  broadcast_tensors(communicator_, buffers_);
}

}  // namespace lockstep::parallel
