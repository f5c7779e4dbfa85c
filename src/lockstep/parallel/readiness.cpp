#include "lockstep/parallel/readiness.h"

#include <algorithm>
#include <numeric>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::parallel {

GradientReadiness::GradientReadiness(const optim::ParameterArena& arena) : arena_(arena) {
  const std::size_t count = arena.segments().size();
  used_.assign(count, 0);
  arrived_.assign(count, 0);
  expected_.assign(count, 1);
  finished_at_.assign(count, 0);
  place_.assign(count, 0);
  for (const auto& segment : arena.segments()) {
    // The accumulator is kept alive here: autograd itself holds it weakly, and a new one would have no hook.
    auto accumulator = torch::autograd::impl::grad_accumulator(segment.parameter);
    LOCKSTEP_CHECK(accumulator != nullptr);
    const auto key = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, index = segment.index](const torch::autograd::variable_list& outputs,
                                      const torch::autograd::variable_list&) {
          on_accumulated(index);
          return outputs;
        }));
    hooks_.emplace_back(std::move(accumulator), key);
  }
}

GradientReadiness::~GradientReadiness() {
  for (auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
}

void GradientReadiness::watch(const BucketPlan& plan, std::function<void(int)> on_gradient,
                              std::function<void(int)> on_bucket) {
  plan_ = &plan;
  on_gradient_ = std::move(on_gradient);
  on_bucket_ = std::move(on_bucket);
  const auto& segments = arena_.segments();
  for (std::size_t s = 0; s < segments.size(); ++s) {
    place_[static_cast<std::size_t>(segments[s].index)] = static_cast<int>(s);
  }
  next_bucket_ = plan.buckets.size();
}

void GradientReadiness::begin_backward(Mode mode) {
  mode_ = mode;
  if (mode == Mode::kAccumulate) return;
  std::fill(arrived_.begin(), arrived_.end(), 0);
  std::fill(finished_at_.begin(), finished_at_.end(), 0);
  clock_ = 0;
  pending_.clear();
  for (const auto& bucket : plan_->buckets) pending_.push_back(static_cast<int>(bucket.segments.size()));
  // A parameter that is expected to bring none is complete from the start.
  for (std::size_t index = 0; index < expected_.size(); ++index) {
    const auto place = static_cast<std::size_t>(place_[index]);
    if (expected_[index] == 0) --pending_[static_cast<std::size_t>(plan_->bucket_of_segment[place])];
  }
  next_bucket_ = 0;
}

void GradientReadiness::on_accumulated(int index) {
  const auto i = static_cast<std::size_t>(index);
  used_[i] = 1;
  if (mode_ == Mode::kAccumulate) return;
  ++arrived_[i];
  finished_at_[i] = ++clock_;
  if (mode_ != Mode::kSend) return;
  const auto place = static_cast<std::size_t>(place_[i]);
  const auto bucket = static_cast<std::size_t>(plan_->bucket_of_segment[place]);
  if (bucket < next_bucket_) {
    if (expected_[i] == 0) {
      throw Error(text("static graph: parameter ", arena_.segments()[place].name,
                       " got a gradient, which it did not in the first step"),
                  "switch static_graph off for a model that chooses its path by the data");
    }
    throw Error(text("parameter ", arena_.segments()[place].name, " got gradient number ", arrived_[i],
                     " of one backward pass after its bucket was sent; ", expected_[i], " were expected"),
                "it is used in several checkpointed parts in some steps only: use it the same way in every step");
  }
  if (on_gradient_) on_gradient_(static_cast<int>(place));
  if (arrived_[i] == expected_[i]) --pending_[bucket];
  send_complete_buckets();
}

void GradientReadiness::send_complete_buckets() {
  while (next_bucket_ < pending_.size() && pending_[next_bucket_] <= 0) on_bucket_(static_cast<int>(next_bucket_++));
}

void GradientReadiness::flush() {
  if (mode_ != Mode::kSend) return;
  while (next_bucket_ < plan_->buckets.size()) on_bucket_(static_cast<int>(next_bucket_++));
  mode_ = Mode::kAccumulate;
}

void GradientReadiness::end_step() {
  std::fill(used_.begin(), used_.end(), 0);
  mode_ = Mode::kAccumulate;
}

bool GradientReadiness::all_used() const {
  return std::find(used_.begin(), used_.end(), 0) == used_.end();
}

std::vector<int> GradientReadiness::ready_order() const {
  std::vector<int> order(finished_at_.size());
  for (std::size_t s = 0; s < order.size(); ++s) order[s] = arena_.segments()[s].index;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const auto at = [&](int index) {
      const auto time = finished_at_[static_cast<std::size_t>(index)];
      return time == 0 ? INT64_MAX : time;
    };
    return at(a) < at(b);
  });
  return order;
}

void GradientReadiness::expect_last_counts(int least) {
  for (std::size_t i = 0; i < expected_.size(); ++i) expected_[i] = std::max(arrived_[i], least);
}

std::vector<std::string> GradientReadiness::changed_counts() const {
  std::vector<std::string> names;
  for (const auto& segment : arena_.segments()) {
    const auto i = static_cast<std::size_t>(segment.index);
    if (arrived_[i] != expected_[i]) names.push_back(segment.name);
  }
  return names;
}

}  // namespace lockstep::parallel
