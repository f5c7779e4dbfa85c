#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/bucketed.h"
#include "lockstep/parallel/hook.h"

namespace lockstep::parallel {

comm::Buffer buffer_of(const at::Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.is_contiguous() && (tensor.is_cpu() || tensor.is_cuda()));
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
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype,
          tensor.is_cuda() ? comm::Memory::kDevice : comm::Memory::kHost};
}

namespace {

class Ddp final : public BucketedStrategy {
 public:
  Ddp(comm::Communicator& communicator, const DdpOptions& options)
      : BucketedStrategy(communicator, options, 1), hook_(options.hook) {}

  const char* name() const noexcept override { return "ddp"; }
  optim::UpdatePlan update_plan() const override { return optim::whole_update_plan(arena()); }

 protected:
  comm::Work send(const Bucket& bucket, int index, bool with_tail) override {
    if (hook_) return start_hook(bucket, index);
    auto& gradients =
        with_tail ? arena().gradients_and_tail() : arena().buffers()[static_cast<std::size_t>(bucket.buffer)].gradients;
    const auto end = with_tail ? gradients.numel() : bucket.end;
    return communicator().all_reduce(buffer_of(gradients.narrow(0, bucket.begin, end - bucket.begin)),
                                     comm::ReduceOp::kSum);
  }

  // A hook may round: the sums and flags go by themselves.
  bool tail_in_last_bucket() const override {
    return hook_ == nullptr && arena().tail_is_attached() && buckets().back().buffer == 0;
  }

 private:
  comm::Work start_hook(const Bucket& bucket, int index) {
    const auto& gradients = arena().buffers()[static_cast<std::size_t>(bucket.buffer)].gradients;
    std::vector<at::Tensor> views;
    for (const int s : bucket.segments) {
      views.push_back(arena().view(gradients, arena().segments()[static_cast<std::size_t>(s)]));
    }
    return hook_->start({.index = index,
                         .flat = gradients.narrow(0, bucket.begin, bucket.end - bucket.begin),
                         .parameters = std::move(views)},
                        communicator());
  }

  std::shared_ptr<CommunicationHook> hook_;
};

}  // namespace

std::unique_ptr<Strategy> make_ddp(comm::Communicator& communicator, const DdpOptions& options) {
  return std::make_unique<Ddp>(communicator, options);
}

}  // namespace lockstep::parallel
