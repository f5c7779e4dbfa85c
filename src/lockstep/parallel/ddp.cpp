#include <cmath>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/model_check.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

comm::Buffer buffer_of(const at::Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.is_contiguous() && tensor.device().is_cpu());
  const auto dtype = [&] {
    switch (tensor.scalar_type()) {
      case at::kDouble:
        return comm::Dtype::kF64;
      case at::kFloat:
        return comm::Dtype::kF32;
      case at::kHalf:
        return comm::Dtype::kF16;
      case at::kBFloat16:
        return comm::Dtype::kBF16;
      case at::kLong:
        return comm::Dtype::kI64;
      case at::kInt:
        return comm::Dtype::kI32;
      case at::kByte:
        return comm::Dtype::kU8;
      case at::kBool:
        return comm::Dtype::kU8;
      default:
        throw ConfigError(text("tensors of type ", c10::toString(tensor.scalar_type()), " cannot be exchanged"));
    }
  }();
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype};
}

namespace {

// Note [Buckets are sent in index order]
// A collective pairs with the others by order alone, and ranks may finish gradients in different orders (or, for a
// parameter that one rank did not use, never). So a bucket is sent only after all before it, and finish() sends what
// backward left over. An unused parameter counts with the zeros that its gradient starts from.
class Ddp final : public Strategy {
 public:
  Ddp(comm::Communicator& communicator, const DdpOptions& options) : communicator_(communicator), options_(options) {}
  ~Ddp() override { remove_hooks(); }
  Ddp(const Ddp&) = delete;
  Ddp& operator=(const Ddp&) = delete;

  const char* name() const noexcept override { return "ddp"; }
  int rank() const noexcept override { return communicator_.rank(); }
  int size() const noexcept override { return communicator_.size(); }

  void attach(optim::ParameterArena& arena, const std::vector<optim::NamedTensor>& buffers) override {
    check_same_model(communicator_, arena, buffers);
    arena_ = &arena;
    const auto element_bytes = static_cast<std::int64_t>(arena.values().element_size());
    plan_ = plan_buckets(arena, element_bytes, options_.first_bucket_bytes, options_.bucket_bytes);
    communicator_.broadcast(buffer_of(arena.values()), 0).wait();
    for (const auto& buffer : buffers) broadcast_buffer(buffer.tensor);
    install_hooks();
  }

  void begin_last_backward(const StepSums& local) override {
    auto& tail = arena_->tail();
    // On the CPU these are plain stores; the order is that of StepSums.
    AT_DISPATCH_FLOATING_TYPES(tail.scalar_type(), "tail", [&] {
      auto* values = tail.data_ptr<scalar_t>();
      values[0] = static_cast<scalar_t>(local.count);
      values[1] = static_cast<scalar_t>(local.loss);
      values[2] = static_cast<scalar_t>(local.loss_count);
      values[3] = static_cast<scalar_t>(local.stop ? 1 : 0);
    });
    for (auto& bucket : plan_.buckets) bucket.pending = bucket.num_segments;
    next_bucket_ = 0;
    sending_ = true;
  }

  StepSums finish() override {
    while (next_bucket_ < plan_.buckets.size()) send_next_bucket();
    sending_ = false;
    for (auto& work : works_) work.wait();
    works_.clear();
    StepSums sums;
    AT_DISPATCH_FLOATING_TYPES(arena_->tail().scalar_type(), "tail", [&] {
      const auto* values = arena_->tail().const_data_ptr<scalar_t>();
      sums = {static_cast<double>(values[0]), static_cast<double>(values[1]), static_cast<double>(values[2]),
              values[3] > 0};
    });
    return sums;
  }

 private:
  void broadcast_buffer(const at::Tensor& buffer) {
    at::NoGradGuard no_grad;
    auto flat = buffer.contiguous();
    communicator_.broadcast(buffer_of(flat), 0).wait();
    if (!flat.is_alias_of(buffer)) buffer.copy_(flat);
  }

  void install_hooks() {
    const auto& segments = arena_->segments();
    for (std::size_t s = 0; s < segments.size(); ++s) {
      // The accumulator is kept alive here: autograd itself holds it weakly, and a new one would have no hook.
      auto accumulator = torch::autograd::impl::grad_accumulator(segments[s].parameter);
      LOCKSTEP_CHECK(accumulator != nullptr);
      const auto key = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, s](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
            mark_ready(s);
            return outputs;
          }));
      hooks_.emplace_back(std::move(accumulator), key);
    }
  }

  void remove_hooks() {
    for (auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
    hooks_.clear();
  }

  void mark_ready(std::size_t segment) {
    if (!sending_) return;
    auto& bucket = plan_.buckets[static_cast<std::size_t>(plan_.bucket_of_segment[segment])];
    --bucket.pending;
    while (next_bucket_ < plan_.buckets.size() && plan_.buckets[next_bucket_].pending <= 0) send_next_bucket();
    communicator_.progress();
  }

  void send_next_bucket() {
    const auto& bucket = plan_.buckets[next_bucket_++];
    const auto span = arena_->gradients_and_tail().narrow(0, bucket.begin, bucket.end - bucket.begin);
    works_.push_back(communicator_.all_reduce(buffer_of(span), comm::ReduceOp::kSum));
  }

  comm::Communicator& communicator_;
  const DdpOptions options_;
  optim::ParameterArena* arena_ = nullptr;
  BucketPlan plan_;
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> hooks_;
  std::vector<comm::Work> works_;
  std::size_t next_bucket_ = 0;
  bool sending_ = false;  // only between begin_last_backward() and finish()
};

}  // namespace

std::unique_ptr<Strategy> make_ddp(comm::Communicator& communicator, const DdpOptions& options) {
  return std::make_unique<Ddp>(communicator, options);
}

}  // namespace lockstep::parallel
