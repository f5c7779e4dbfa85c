#include <algorithm>

#include <ATen/OpMathType.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/bucketed.h"
#include "lockstep/parallel/zero.h"

namespace lockstep::parallel {

namespace {

// Note [Shards]
// Every bucket is cut into size() equal parts of whole 64-byte lines; rank r owns part r of each. Its state holds the
// owned parts of one flat buffer side by side, in bucket order.
class Zero final : public BucketedStrategy {
 public:
  Zero(comm::Communicator& communicator, const DdpOptions& options, ZeroStage stage)
      : BucketedStrategy(communicator, options, communicator.size()), stage_(stage) {}
  ~Zero() override { drop_works(); }  // they use the members below
  Zero(const Zero&) = delete;
  Zero& operator=(const Zero&) = delete;

  const char* name() const noexcept override { return stage_ == ZeroStage::kOptimizer ? "zero1" : "zero2"; }

  optim::ParameterArena::Gradients arena_gradients() const noexcept override {
    return stage_ == ZeroStage::kOptimizer ? optim::ParameterArena::Gradients::kHeld
                                           : optim::ParameterArena::Gradients::kNone;
  }

  optim::UpdatePlan update_plan() const override {
    optim::UpdatePlan plan;
    plan.state_numel = shard_numel_;
    if (stage_ == ZeroStage::kGradients) plan.gradient_shards = gradient_shards_;
    for (std::size_t b = 0; b < buckets().size(); ++b) add_pieces(buckets()[b], owned_[b], plan.pieces);
    // By buffer and place, so that neighbours become one pass of the optimizer.
    std::stable_sort(plan.pieces.begin(), plan.pieces.end(), [&](const auto& a, const auto& b) {
      return std::pair(buffer_of_segment(a.segment), a.begin) < std::pair(buffer_of_segment(b.segment), b.begin);
    });
    plan.sum_over_shards = [&communicator = const_cast<Zero*>(this)->communicator()](const at::Tensor& values) {
      communicator.all_reduce(buffer_of(values), comm::ReduceOp::kSum).wait();
    };
    return plan;
  }

 protected:
  void on_layout() override {
    owned_.clear();
    shard_numel_.assign(arena().buffers().size(), 0);
    for (const auto& bucket : buckets()) {
      auto& used = shard_numel_[static_cast<std::size_t>(bucket.buffer)];
      const auto part = (bucket.end - bucket.begin) / size();
      owned_.push_back({bucket.begin + rank() * part, part, used});
      used += part;
    }
    if (stage_ != ZeroStage::kGradients) return;
    gradient_shards_.clear();
    for (std::size_t b = 0; b < arena().buffers().size(); ++b) {
      const auto options = arena().buffers()[b].values.options();
      // Sums over micro-batches are kept in fp32 at least.
      const auto type = at::toOpMathType(arena().buffers()[b].values.scalar_type());
      gradient_shards_.push_back(at::zeros({shard_numel_[b]}, options.dtype(type)));
    }
    slots_.assign(buckets().size(), {});
  }

  comm::Work send(const Bucket& bucket, int index, bool) override {
    const auto& own = owned_[static_cast<std::size_t>(index)];
    if (stage_ == ZeroStage::kOptimizer) {
      const auto& gradients = arena().buffers()[static_cast<std::size_t>(bucket.buffer)].gradients;
      return communicator().reduce_scatter(buffer_of(gradients.narrow(0, bucket.begin, bucket.end - bucket.begin)),
                                           buffer_of(gradients.narrow(0, own.begin, own.numel)), comm::ReduceOp::kSum);
    }
    return comm::Work(std::make_unique<SlotWork>(*this, index));
  }

  bool sends_every_backward() const noexcept override { return stage_ == ZeroStage::kGradients; }
  // One bucket is on its way while the next is filled: no more gradients than that exist at a time.
  std::size_t max_in_flight() const noexcept override { return stage_ == ZeroStage::kGradients ? 1 : SIZE_MAX; }

  std::function<void(int)> on_gradient() override {
    if (stage_ != ZeroStage::kGradients) return {};
    return [this](int segment) { take_gradient(segment); };
  }

  void publish_values() override {
    if (stage_ == ZeroStage::kGradients) {
      for (auto& shard : gradient_shards_) shard.zero_();
    }
    std::vector<comm::Work> works;
    for (std::size_t b = 0; b < buckets().size(); ++b) {
      const auto& bucket = buckets()[b];
      const auto& values = arena().buffers()[static_cast<std::size_t>(bucket.buffer)].values;
      works.push_back(communicator().all_gather(buffer_of(values.narrow(0, owned_[b].begin, owned_[b].numel)),
                                                buffer_of(values.narrow(0, bucket.begin, bucket.end - bucket.begin))));
    }
    for (auto& work : works) work.wait();
  }

 private:
  /// The part of a bucket that this rank owns: [begin, begin + numel) of the flat buffer, state from `state_begin` on.
  struct Owned {
    std::int64_t begin = 0;
    std::int64_t numel = 0;
    std::int64_t state_begin = 0;
  };

  /// Reduce-scatters a bucket's gradients and adds its part to the shard.
  class SlotWork final : public comm::Work::State {
   public:
    SlotWork(Zero& zero, int index) : zero_(zero), index_(static_cast<std::size_t>(index)) {
      const auto& slot = zero_.slot(index_);
      part_ = slot.narrow(0, zero_.rank() * zero_.owned_[index_].numel, zero_.owned_[index_].numel);
      inner_ = zero_.communicator().reduce_scatter(buffer_of(slot), buffer_of(part_), comm::ReduceOp::kSum);
    }
    bool test() override { return inner_.test(); }
    void wait() override {
      inner_.wait();
      at::NoGradGuard no_grad;
      const auto& own = zero_.owned_[index_];
      const auto buffer = static_cast<std::size_t>(zero_.buckets()[index_].buffer);
      zero_.gradient_shards_[buffer].narrow(0, own.state_begin, own.numel).add_(part_);
      part_ = at::Tensor();
      zero_.slots_[index_] = at::Tensor();
    }

   private:
    Zero& zero_;
    const std::size_t index_;
    at::Tensor part_;  // this rank's part of the slot, which takes the sum
    comm::Work inner_;
  };

  int buffer_of_segment(int segment) const { return arena().segments()[static_cast<std::size_t>(segment)].buffer; }

  void add_pieces(const Bucket& bucket, const Owned& own, std::vector<optim::UpdatePiece>& pieces) const {
    for (const int s : bucket.segments) {
      const auto& segment = arena().segments()[static_cast<std::size_t>(s)];
      const auto begin = std::max(segment.offset, own.begin);
      const auto end = std::min(segment.offset + segment.numel, own.begin + own.numel);
      if (begin < end) pieces.push_back({s, begin, end - begin, own.state_begin + begin - own.begin});
    }
  }

  at::Tensor& slot(std::size_t index) {
    auto& slot = slots_[index];
    const auto& bucket = buckets()[index];
    if (!slot.defined()) {
      slot = at::zeros({bucket.end - bucket.begin},
                       arena().buffers()[static_cast<std::size_t>(bucket.buffer)].values.options());
    }
    return slot;
  }

  // Autograd hands the gradient over in `.grad`; it goes into its bucket's memory and is let go at once.
  void take_gradient(int s) {
    at::NoGradGuard no_grad;
    const auto& segment = arena().segments()[static_cast<std::size_t>(s)];
    const auto index = static_cast<std::size_t>(bucket_of(s));
    auto& gradient = segment.parameter.mutable_grad();
    arena().view_at(slot(index), segment, segment.offset - buckets()[index].begin).add_(gradient);
    gradient = at::Tensor();
  }

  const ZeroStage stage_;
  std::vector<Owned> owned_;                 // by bucket
  std::vector<std::int64_t> shard_numel_;    // by flat buffer
  std::vector<at::Tensor> gradient_shards_;  // zero2, by flat buffer
  std::vector<at::Tensor> slots_;            // zero2, by bucket: its gradients while they are collected and sent
};

}  // namespace

std::unique_ptr<Strategy> make_strategy(comm::Communicator& communicator, Sharding sharding,
                                        const DdpOptions& options) {
  if (communicator.size() == 1) return make_single();
  if (sharding == Sharding::kOptimizer) return make_zero(communicator, ZeroStage::kOptimizer, options);
  if (sharding == Sharding::kGradients) return make_zero(communicator, ZeroStage::kGradients, options);
  return make_ddp(communicator, options);
}

std::unique_ptr<Strategy> make_zero(comm::Communicator& communicator, ZeroStage stage, const DdpOptions& options) {
  if (options.hook) {
    throw ConfigError("communication hooks replace an all-reduce; the sharded strategies reduce and scatter",
                      "use ddp with the hook, or zero1 or zero2 without");
  }
  return std::make_unique<Zero>(communicator, options, stage);
}

}  // namespace lockstep::parallel
