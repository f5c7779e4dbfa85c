#include "lockstep/parallel/strategy.h"

#include "lockstep/parallel/readiness.h"

namespace lockstep::parallel {

namespace {

class Single final : public Strategy {
 public:
  const char* name() const noexcept override { return "single"; }
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }

  void attach(optim::ParameterArena& arena, const std::vector<optim::NamedTensor>&) override {
    arena_ = &arena;
    readiness_ = std::make_unique<GradientReadiness>(arena);
  }

  optim::UpdatePlan update_plan() const override { return optim::whole_update_plan(*arena_); }

  void begin_step() override { readiness_->end_step(); }

  void begin_backward(bool last, const StepSums& local) override {
    readiness_->begin_backward(GradientReadiness::Mode::kAccumulate);
    if (last) sums_ = local;
  }
  void fail_step() noexcept override { sums_.failed = 1; }

  // A parameter without a gradient is left alone by the optimizer, as by torch.optim.
  StepSums finish() override {
    sums_.failed_rank = sums_.failed > 0 ? 0 : -1;
    sums_.unused.clear();
    if (!readiness_->all_used()) {
      for (const auto& segment : arena_->segments())
        sums_.unused.push_back(readiness_->was_used(segment.index) ? 0 : 1);
    }
    readiness_->end_step();
    return sums_;
  }

  void publish() override {}

 private:
  optim::ParameterArena* arena_ = nullptr;
  std::unique_ptr<GradientReadiness> readiness_;
  StepSums sums_;
};

}  // namespace

std::unique_ptr<Strategy> make_single() {
  return std::make_unique<Single>();
}

}  // namespace lockstep::parallel
