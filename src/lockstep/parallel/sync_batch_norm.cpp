#include "lockstep/parallel/sync_batch_norm.h"

#include <optional>
#include <utility>

#include <ATen/OpMathType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

namespace {

// Note [Intercepting batch_norm]
// torch::nn::BatchNorm calls at::batch_norm, an operation of the dispatcher. A dispatch key that no tensor carries, and
// that falls through for every other operation, is switched on for this thread while a scope lives; the kernel below is
// registered for that key. LibTorch has this key for code outside of it and uses it nowhere itself.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

thread_local comm::Communicator* current_communicator = nullptr;

// [channels, values of each channel] sums: everything but dimension 1 is summed.
std::vector<std::int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

at::Tensor by_channel(const at::Tensor& vector, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = vector.numel();
  return vector.view(shape);
}

std::int64_t values_per_channel(const at::Tensor& input) {
  return input.size(1) == 0 ? 0 : input.numel() / input.size(1);
}

// Mean and biased variance over all ranks, and the number of values behind them.
struct Statistics {
  at::Tensor mean, variance;  // [C]
  double count = 0;
};

Statistics statistics_over_ranks(const at::Tensor& x, comm::Communicator& communicator) {
  const auto channels = x.size(1);
  const auto dimensions = all_but_channels(x);
  const auto count = static_cast<double>(values_per_channel(x));
  // Counts travel between the hosts: reading them from the device would wait for it.
  Statistics merged;
  std::vector<double> counts_of_ranks(static_cast<std::size_t>(communicator.size()));
  communicator
      .all_gather({&count, 1, comm::Dtype::kF64}, {counts_of_ranks.data(), counts_of_ranks.size(), comm::Dtype::kF64})
      .wait();
  for (const double of_rank : counts_of_ranks) merged.count += of_rank;
  auto mine = at::zeros({2 * channels}, x.options());
  if (count > 0) {
    const auto mean = x.mean(dimensions);
    mine.narrow(0, 0, channels).copy_(mean);
    mine.narrow(0, channels, channels).copy_((x - by_channel(mean, x)).square().sum(dimensions));
  }
  auto all = at::empty({communicator.size(), 2 * channels}, x.options());
  communicator.all_gather(buffer_of(mine), buffer_of(all)).wait();

  const auto counts = at::tensor(counts_of_ranks, at::kDouble).to(x.options(), /*non_blocking=*/true).unsqueeze(1);
  const auto means = all.narrow(1, 0, channels);
  merged.mean = (means * counts).sum(0) / merged.count;
  const auto between = ((means - merged.mean).square() * counts).sum(0);
  merged.variance = (all.narrow(1, channels, channels).sum(0) + between) / merged.count;
  return merged;
}

void update_running(at::Tensor running_mean, at::Tensor running_variance, const Statistics& statistics,
                    double momentum) {
  at::NoGradGuard no_grad;
  if (running_mean.defined()) running_mean.lerp_(statistics.mean.to(running_mean.scalar_type()), momentum);
  if (!running_variance.defined()) return;
  const auto unbiased = statistics.variance * (statistics.count / (statistics.count - 1));
  running_variance.lerp_(unbiased.to(running_variance.scalar_type()), momentum);
}

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor value_or_none(const OptionalTensor& tensor) {
  return tensor.value_or(at::Tensor());
}

// Optional arguments: a layer without weights or running statistics passes none, and autograd refuses undefined
// tensors.
struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const OptionalTensor& weight_or_none, const OptionalTensor& bias_or_none,
                            const OptionalTensor& running_mean, const OptionalTensor& running_variance, double momentum,
                            double eps, comm::Communicator* communicator) {
    const auto weight = value_or_none(weight_or_none), bias = value_or_none(bias_or_none);
    const auto type = at::toOpMathType(input.scalar_type());
    const auto x = input.to(type);
    const auto statistics = statistics_over_ranks(x, *communicator);
    if (statistics.count < 2) {
      throw ConfigError(text("synchronised batch normalisation: all ranks together bring ", statistics.count,
                             " value a channel: expected 2 or more"),
                        "use a larger batch, or --drop-last");
    }
    update_running(value_or_none(running_mean), value_or_none(running_variance), statistics, momentum);
    const auto inverse_deviation = (statistics.variance + eps).rsqrt();
    auto output = (x - by_channel(statistics.mean, x)) * by_channel(inverse_deviation, x);
    if (weight.defined()) output = output * by_channel(weight.to(type), x);
    if (bias.defined()) output = output + by_channel(bias.to(type), x);

    context->save_for_backward({input, weight, statistics.mean, inverse_deviation});
    context->saved_data["count"] = statistics.count;
    context->saved_data["communicator"] = reinterpret_cast<std::int64_t>(communicator);
    context->saved_data["has_bias"] = bias.defined();
    return output.to(input.scalar_type(), /*non_blocking=*/false, /*copy=*/false, input.suggest_memory_format());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (at::GradMode::is_enabled()) {
      throw ConfigError(
          "synchronised batch normalisation can be differentiated once: its backward was asked for a graph "
          "(create_graph)");
    }
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse_deviation = saved[3];
    auto& communicator = *reinterpret_cast<comm::Communicator*>(context->saved_data["communicator"].toInt());
    const auto type = mean.scalar_type();
    const auto dy = gradients[0].to(type);
    const auto normalised = (input.to(type) - by_channel(mean, input)) * by_channel(inverse_deviation, input);
    const auto dimensions = all_but_channels(input);
    const auto channels = input.size(1);

    // [sum of dy, sum of dy * normalised]: this rank's are the gradients of bias and weight, all ranks' go into dx.
    auto sums = at::zeros({2, channels}, mean.options());
    if (values_per_channel(input) > 0) {
      sums[0].copy_(dy.sum(dimensions));
      sums[1].copy_((dy * normalised).sum(dimensions));
    }
    const auto own = sums.clone();
    communicator.all_reduce(buffer_of(sums), comm::ReduceOp::kSum).wait();
    sums.div_(context->saved_data["count"].toDouble());
    auto dx = dy - by_channel(sums[0], input) - normalised * by_channel(sums[1], input);
    auto scale = inverse_deviation;
    if (weight.defined()) scale = scale * weight.to(type);
    dx = (dx * by_channel(scale, input)).to(input.scalar_type());

    const auto d_weight = weight.defined() ? own[1].to(weight.scalar_type()) : at::Tensor();
    const auto d_bias = context->saved_data["has_bias"].toBool()
                            ? own[0].to(weight.defined() ? weight.scalar_type() : type)
                            : at::Tensor();
    return {dx, d_weight, d_bias, {}, {}, {}, {}, {}};
  }
};

at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                      double momentum, double eps, bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard beneath(kKey);
  if (!training || current_communicator == nullptr || current_communicator->size() == 1) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
  }
  return SyncBatchNorm::apply(input, weight, bias, running_mean, running_var, momentum, eps, current_communicator);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  library.impl("batch_norm", batch_norm);
}

SyncBatchNormScope::SyncBatchNormScope(comm::Communicator& communicator)
    : outer_(std::exchange(current_communicator, &communicator)),
      was_included_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

SyncBatchNormScope::~SyncBatchNormScope() {
  c10::impl::tls_set_dispatch_key_included(kKey, was_included_);
  current_communicator = outer_;
}

}  // namespace lockstep::parallel
