#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <ATen/OpMathType.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::optim {

namespace {

constexpr const char* kMaster = "master";

}  // namespace

Optimizer::Optimizer(std::vector<std::vector<at::Tensor>> groups, std::vector<double> lr) : lr_(std::move(lr)) {
  if (groups.empty()) throw ConfigError("the optimizer was given no parameter group");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (auto& parameter : groups[g]) {
      parameters_.push_back(std::move(parameter));
      group_of_parameter_.push_back(static_cast<int>(g));
    }
  }
}

bool Optimizer::is_half(int buffer) const {
  const auto type = arena_->buffers()[static_cast<std::size_t>(buffer)].values.scalar_type();
  return at::toOpMathType(type) != type;
}

void Optimizer::bind(ParameterArena& arena, UpdatePlan plan) {
  arena_ = &arena;
  plan_ = std::move(plan);
  std::unordered_map<const c10::TensorImpl*, int> groups;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    groups.emplace(parameters_[p].unsafeGetTensorImpl(), group_of_parameter_[p]);
  }
  group_of_segment_.assign(arena.segments().size(), 0);
  for (const auto& segment : arena.segments()) {
    const auto found = groups.find(segment.parameter.unsafeGetTensorImpl());
    // An arena may be made without this optimizer's list, in tests of single pieces.
    if (found != groups.end()) group_of_segment_[static_cast<std::size_t>(segment.index)] = found->second;
  }
  parameter_steps_.assign(arena.segments().size(), num_steps_);

  state_.clear();
  for (std::size_t b = 0; b < arena.buffers().size(); ++b) {
    const auto& values = arena.buffers()[b].values;
    const int buffer = static_cast<int>(b);
    const auto options = values.options().dtype(at::toOpMathType(values.scalar_type()));
    for (const auto& name : state_names()) {
      state_.push_back({name, buffer, at::zeros({plan_.state_numel[b]}, options)});
    }
    if (is_half(buffer)) state_.push_back({kMaster, buffer, at::zeros({plan_.state_numel[b]}, options)});
  }
  copy_values_to_masters();
}

void Optimizer::copy_values_to_masters() {
  at::NoGradGuard no_grad;
  for (auto& state : state_) {
    if (state.name != kMaster) continue;
    const auto& values = arena_->buffers()[static_cast<std::size_t>(state.buffer)].values;
    copy_to_state(*arena_, plan_, state.buffer, values, state.tensor);
  }
}

void Optimizer::set_num_steps(std::int64_t num_steps) {
  num_steps_ = num_steps;
  parameter_steps_.assign(parameter_steps_.size(), num_steps);
}

void Optimizer::set_parameter_steps(std::vector<std::int64_t> steps) {
  LOCKSTEP_CHECK(steps.size() == parameter_steps_.size());
  parameter_steps_ = std::move(steps);
}

// Consecutive pieces become one run while they touch and share buffer, options and step count; the padding between two
// parameters is zero and stays zero under every rule.
std::vector<Optimizer::Run> Optimizer::make_runs(double lr, const UpdateScale& scale, const std::vector<char>& unused,
                                                 std::vector<int>& segments) {
  std::vector<Run> runs;
  const auto& pieces = plan_.pieces;
  const auto segment_of = [&](const UpdatePiece& piece) -> const Segment& {
    return arena_->segments()[static_cast<std::size_t>(piece.segment)];
  };
  const auto index_of = [&](const UpdatePiece& piece) { return static_cast<std::size_t>(segment_of(piece).index); };
  for (std::size_t first = 0; first < pieces.size();) {
    const auto& piece = pieces[first];
    if (!unused.empty() && unused[static_cast<std::size_t>(piece.segment)] != 0) {
      ++first;
      continue;
    }
    std::size_t last = first + 1;
    const auto joins = [&](const UpdatePiece& next) {
      const auto gap = next.begin - pieces[last - 1].begin;
      return segment_of(next).buffer == segment_of(piece).buffer &&
             gap == next.state_begin - pieces[last - 1].state_begin &&
             gap == aligned_numel(pieces[last - 1].numel,
                                  static_cast<std::int64_t>(segment_of(piece).parameter.element_size())) &&
             group_of_segment_[index_of(next)] == group_of_segment_[index_of(piece)] &&
             parameter_steps_[index_of(next)] == parameter_steps_[index_of(piece)] &&
             (unused.empty() || unused[static_cast<std::size_t>(next.segment)] == 0);
    };
    while (!by_parameter() && last < pieces.size() && joins(pieces[last])) ++last;

    const auto numel = pieces[last - 1].begin + pieces[last - 1].numel - piece.begin;
    const int group = group_of_segment_[index_of(piece)];
    const int buffer = segment_of(piece).buffer;
    const double own_lr = lr_[static_cast<std::size_t>(group)];
    Run run{.values = {},
            .gradients = {},
            .state = {},
            .group = group,
            .step = parameter_steps_[index_of(piece)] + 1,
            .lr = group == 0 ? lr : lr * own_lr / lr_.front(),
            .scale = &scale,
            .device_lr = scale.lr.defined() && group != 0 ? scale.lr * (own_lr / lr_.front()) : scale.lr};
    for (const auto& state : state_) {
      if (state.buffer != buffer) continue;
      const auto view = state.tensor.narrow(0, piece.state_begin, numel);
      if (state.name == kMaster)
        run.values = view;
      else
        run.state.push_back(view);
    }
    UpdatePiece whole = piece;
    whole.numel = numel;
    run.gradients = plan_.gradient(*arena_, whole);
    if (is_half(buffer))
      run.gradients = run.gradients.to(at::kFloat);
    else
      run.values = arena_->buffers()[static_cast<std::size_t>(buffer)].values.narrow(0, piece.begin, numel);
    runs.push_back(std::move(run));
    segments.push_back(piece.segment);
    first = last;
  }
  return runs;
}

void Optimizer::step(double lr, const UpdateScale& scale, const std::vector<char>& unused) {
  at::NoGradGuard no_grad;
  LOCKSTEP_CHECK(is_bound());
  LOCKSTEP_CHECK(!scale.is_on_device() || decides_on_device());
  std::vector<int> segments;
  const auto runs = make_runs(lr, scale, unused, segments);
  if (by_parameter()) prepare(runs, segments);
  for (const auto& run : runs) update(run);
  for (const auto& state : state_) {
    if (state.name != kMaster) continue;
    const auto& values = arena_->buffers()[static_cast<std::size_t>(state.buffer)].values;
    copy_from_state(*arena_, plan_, state.buffer, state.tensor, values);
  }
  count_update(unused, 1);
}

void Optimizer::take_back(const std::vector<char>& unused) {
  count_update(unused, -1);
}

void Optimizer::count_update(const std::vector<char>& unused, int amount) {
  num_steps_ += amount;
  for (std::size_t s = 0; s < arena_->segments().size(); ++s) {
    const auto index = static_cast<std::size_t>(arena_->segments()[s].index);
    if (unused.empty() || unused[s] == 0) parameter_steps_[index] += amount;
  }
}

}  // namespace lockstep::optim
