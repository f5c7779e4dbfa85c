#include "lockstep/optim/large_batch.h"

#include <cmath>

#include <torch/torch.h>

#include "lockstep/base/options.h"

namespace lockstep::optim {

namespace {

double sum_of_squares(const at::Tensor& flat) {
  const double norm = at::linalg_vector_norm(flat, 2, {}, false, at::kDouble).item<double>();
  return norm * norm;
}

// Norms of whole parameters: two values a segment, of which a rank brings the part of its piece.
struct Norms {
  double first = 0, second = 0;
};
std::vector<Norms> norms_over_shards(const UpdatePlan& plan, std::size_t num_segments, const std::vector<int>& segments,
                                     const std::vector<at::Tensor>& first, const std::vector<at::Tensor>& second) {
  std::vector<double> sums(2 * num_segments);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto s = 2 * static_cast<std::size_t>(segments[i]);
    sums[s] += sum_of_squares(first[i]);
    sums[s + 1] += sum_of_squares(second[i]);
  }
  if (plan.is_sharded()) {
    plan.sum_over_shards(at::from_blob(sums.data(), {static_cast<std::int64_t>(sums.size())}, at::kDouble));
  }
  std::vector<Norms> norms;
  for (const int segment : segments) {
    const auto s = 2 * static_cast<std::size_t>(segment);
    norms.push_back({std::sqrt(sums[s]), std::sqrt(sums[s + 1])});
  }
  return norms;
}

}  // namespace

Lamb::Lamb(std::vector<at::Tensor> parameters, const LambOptions& options)
    : Optimizer({std::move(parameters)}, {options.lr}), options_(options) {
  require_option(options.lr >= 0 && std::isfinite(options.lr), "lr", options.lr, "0 or more");
  require_option(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "0 to below 1");
  require_option(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "0 to below 1");
  require_option(options.eps > 0, "eps", options.eps, "above 0");
  require_option(options.weight_decay >= 0, "weight_decay", options.weight_decay, "0 or more");
}

void Lamb::prepare(const std::vector<Run>& runs, const std::vector<int>& segments) {
  directions_.clear();
  std::vector<at::Tensor> values;
  for (const auto& run : runs) {
    const auto gradient = run.gradients * run.scale->host;
    const auto &average = run.state[0], &square = run.state[1];
    average.mul_(options_.beta1).add_(gradient, 1 - options_.beta1);
    square.mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
    const double step = static_cast<double>(run.step);
    const auto denominator = (square / (1 - std::pow(options_.beta2, step))).sqrt_().add_(options_.eps);
    auto direction = (average / (1 - std::pow(options_.beta1, step))).div_(denominator);
    directions_.push_back(direction.add_(run.values, options_.weight_decay));
    values.push_back(run.values);
  }
  const auto norms = norms_over_shards(plan(), arena().segments().size(), segments, values, directions_);
  ratios_.clear();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& parameter = arena().segments()[static_cast<std::size_t>(segments[i])].parameter;
    const bool adapts = (options_.adapt_vectors || parameter.dim() > 1) && norms[i].first > 0 && norms[i].second > 0;
    ratios_.push_back(adapts ? norms[i].first / norms[i].second : 1);
  }
  next_ = 0;
}

void Lamb::update(const Run& run) {
  run.values.add_(directions_[next_], -run.lr * ratios_[next_]);
  directions_[next_++] = at::Tensor();
}

Lars::Lars(std::vector<at::Tensor> parameters, const LarsOptions& options)
    : Optimizer({std::move(parameters)}, {options.lr}), options_(options) {
  require_option(options.lr >= 0 && std::isfinite(options.lr), "lr", options.lr, "0 or more");
  require_option(options.momentum >= 0 && options.momentum < 1, "momentum", options.momentum, "0 to below 1");
  require_option(options.weight_decay >= 0, "weight_decay", options.weight_decay, "0 or more");
  require_option(options.trust > 0, "trust", options.trust, "above 0");
}

void Lars::prepare(const std::vector<Run>& runs, const std::vector<int>& segments) {
  std::vector<at::Tensor> values, gradients;
  for (const auto& run : runs) {
    values.push_back(run.values);
    gradients.push_back(run.gradients);
  }
  const auto norms = norms_over_shards(plan(), arena().segments().size(), segments, values, gradients);
  ratios_.clear();
  is_adapted_.clear();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& parameter = arena().segments()[static_cast<std::size_t>(segments[i])].parameter;
    const bool adapts = options_.adapt_vectors || parameter.dim() > 1;
    const double gradient = norms[i].second * runs[i].scale->host;
    const double denominator = gradient + options_.weight_decay * norms[i].first + options_.eps;
    const bool is_usable = adapts && norms[i].first > 0 && gradient > 0;
    ratios_.push_back(is_usable ? options_.trust * norms[i].first / denominator : 1);
    is_adapted_.push_back(adapts ? 1 : 0);
  }
  next_ = 0;
}

void Lars::update(const Run& run) {
  const double weight_decay = is_adapted_[next_] != 0 ? options_.weight_decay : 0;
  auto direction = run.gradients * run.scale->host;
  direction.add_(run.values, weight_decay).mul_(ratios_[next_]);
  run.state[0].mul_(options_.momentum).add_(direction);
  run.values.add_(run.state[0], -run.lr);
  ++next_;
}

}  // namespace lockstep::optim
