#include "lockstep/api/session.h"

#include <cmath>

#include <torch/torch.h>

#include "lockstep/api/rank_context.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/module_buffers.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep {

namespace api {

void StartTurn::wait_for(int rank) {
  std::unique_lock lock(mutex_);
  turned_.wait(lock, [&] { return turn_ >= rank; });
}

void StartTurn::release(int rank) {
  {
    const std::lock_guard lock(mutex_);
    turn_ = std::max(turn_, rank + 1);
  }
  turned_.notify_all();
}

void RankContext::enter_collective() {
  if (start_turn != nullptr && !std::exchange(entered_, true)) start_turn->release(world.rank);
}

}  // namespace api

struct Engine::Impl {
  Impl(api::RankContext& rank_context, int micro_batches) : context(rank_context), accumulate(micro_batches) {}

  api::RankContext& context;
  std::unique_ptr<parallel::Strategy> strategy;
  std::unique_ptr<train::Engine> engine;
  const int accumulate;
  int calls_in_window = 0;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;

std::int64_t Engine::join() {
  if (impl_->context.is_engine_stopped) throw Stopped();
  impl_->calls_in_window = 0;
  return impl_->engine->join();
}

void Engine::settle() {
  impl_->engine->settle();
}

std::optional<double> Engine::loss_scale() const {
  const auto& scaler = impl_->engine->scaler();
  return scaler ? std::optional<double>(scaler->scale()) : std::nullopt;
}

std::int64_t Engine::num_steps() const {
  return impl_->engine->num_steps();
}

std::pair<at::Tensor, at::Tensor> Engine::on_device(const data::Batch& batch) const {
  const auto device = impl_->context.device;
  if (device.is_cpu()) return {batch.input, batch.target};
  return {batch.input.to(device, /*non_blocking=*/true), batch.target.to(device, /*non_blocking=*/true)};
}

Engine::Result Engine::micro_step(std::int64_t samples, bool last, const train::Engine::LossFunction& loss) {
  auto& context = impl_->context;
  if (context.is_engine_stopped) throw Stopped();
  if (context.stop_signal != nullptr && context.stop_signal->load(std::memory_order_relaxed) != 0) {
    impl_->engine->request_stop();
  }
  const bool ends_window = impl_->calls_in_window + 1 >= impl_->accumulate || last;
  // One that throws counts too, as the other ranks have made theirs; an empty batch is refused before that.
  if (samples >= 1) impl_->calls_in_window = ends_window ? 0 : impl_->calls_in_window + 1;
  const Result result = impl_->engine->micro_step(samples, ends_window, loss);
  context.is_engine_stopped = result.stop;
  return result;
}

Session::Session(api::RankContext& context) : context_(context) {}

int Session::rank() const {
  return context_.world.rank;
}
int Session::size() const {
  return context_.world.size;
}
at::Device Session::device() const {
  return context_.device;
}
const std::vector<std::string>& Session::arguments() const {
  return context_.arguments;
}

void Session::print(std::string_view line) const {
  if (is_main()) try_write_all(1, text(line, "\n"));
}

void Session::place_module(torch::nn::Module& module) {
  context_.enter_collective();
  module.to(context_.device);
  if (size() == 1) return;
  std::vector<optim::NamedTensor> tensors;
  for (const auto& parameter : module.named_parameters()) tensors.push_back({parameter.key(), parameter.value()});
  for (const auto& buffer : module.named_buffers()) tensors.push_back({buffer.key(), buffer.value()});
  parallel::broadcast_tensors(*context_.communicator, tensors);
}

Engine Session::make_engine(torch::nn::Module& model, optim::Optimizer& optimizer, const EngineOptions& options) {
  if (options.accumulate < 1) {
    throw ConfigError(text("EngineOptions.accumulate is ", options.accumulate, ": expected 1 or more"));
  }
  context_.enter_collective();
  auto impl = std::make_unique<Engine::Impl>(context_, options.accumulate);
  impl->strategy = parallel::make_strategy(*context_.communicator, options.sharding, options.exchange);
  impl->engine = std::make_unique<train::Engine>(
      model, optimizer, *impl->strategy,
      train::EngineOptions{.average = options.average,
                           .join_divisor = options.join_divisor,
                           .clip_norm = options.clip_norm,
                           .clip_value = options.clip_value,
                           .schedule = options.schedule,
                           .precision = options.precision,
                           .scaler = options.scaler,
                           .decisions = options.decisions,
                           .sync_batch_norm = options.sync_batch_norm && size() > 1 ? context_.communicator : nullptr});
  if (auto board = StatusBoard::from_environment(); board && context_.start_turn == nullptr) {
    impl->engine->report_to(std::move(*board), context_.world.local_rank);
  }
  return Engine(std::move(impl));
}

data::Loader Session::loader(std::shared_ptr<const data::ImageDataset> dataset, LoaderOptions options) {
  return data::Loader(std::move(dataset), {.batch_size = options.batch_size,
                                           .num_replicas = size(),
                                           .rank = rank(),
                                           .seed = context_.seed,
                                           .shuffle = options.shuffle,
                                           .drop_last = options.drop_last,
                                           .workers = options.workers});
}

double Session::scaled_lr(double lr, std::int64_t batch_size, int accumulate) const {
  constexpr double kBaseBatch = 256;
  return lr * static_cast<double>(batch_size * size() * accumulate) / kBaseBatch;
}

train::EvaluationResult Session::evaluate_with(std::shared_ptr<const data::ImageDataset> dataset,
                                               const std::function<at::Tensor(const at::Tensor&)>& forward) {
  context_.enter_collective();
  auto loader =
      data::Loader::for_evaluation(std::move(dataset), {.batch_size = 256, .num_replicas = size(), .rank = rank()});
  const auto on_device = [&](const at::Tensor& input) { return forward(input.to(context_.device)); };
  return train::evaluate(loader, on_device, *context_.communicator);
}

double Session::sum(double value) {
  context_.enter_collective();
  context_.communicator->all_reduce({&value, 1, comm::Dtype::kF64}, comm::ReduceOp::kSum).wait();
  return value;
}

std::vector<double> Session::gather(double value) {
  context_.enter_collective();
  std::vector<double> values(static_cast<std::size_t>(size()));
  context_.communicator->all_gather({&value, 1, comm::Dtype::kF64}, {values.data(), values.size(), comm::Dtype::kF64})
      .wait();
  return values;
}

void Session::barrier() {
  context_.enter_collective();
  context_.communicator->barrier();
}

}  // namespace lockstep
