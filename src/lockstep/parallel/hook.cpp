#include "lockstep/parallel/hook.h"

#include <torch/torch.h>

#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

namespace {

// Division by the world size comes before the sum, as in Python, to keep the sum within the narrow type's range; it is
// undone after it, since a bucket holds sums.
class CastWork final : public comm::Work::State {
 public:
  CastWork(at::Tensor narrow, at::Tensor flat, comm::Communicator& communicator)
      : narrow_(std::move(narrow)), flat_(std::move(flat)), world_size_(communicator.size()) {
    inner_ = communicator.all_reduce(buffer_of(narrow_), comm::ReduceOp::kSum);
  }
  bool test() override { return inner_.test(); }
  void wait() override {
    inner_.wait();
    at::NoGradGuard no_grad;
    flat_.copy_(narrow_).mul_(world_size_);
  }

 private:
  at::Tensor narrow_, flat_;
  const int world_size_;
  comm::Work inner_;
};

class CastHook final : public CommunicationHook {
 public:
  explicit CastHook(at::ScalarType type) : type_(type) {}
  comm::Work start(const GradientBucket& bucket, comm::Communicator& communicator) override {
    at::NoGradGuard no_grad;
    auto narrow = bucket.flat.to(type_).div_(communicator.size());
    return comm::Work(std::make_unique<CastWork>(std::move(narrow), bucket.flat, communicator));
  }

 private:
  const at::ScalarType type_;
};

}  // namespace

std::shared_ptr<CommunicationHook> make_fp16_hook() {
  return std::make_shared<CastHook>(at::kHalf);
}

std::shared_ptr<CommunicationHook> make_bf16_hook() {
  return std::make_shared<CastHook>(at::kBFloat16);
}

}  // namespace lockstep::parallel
