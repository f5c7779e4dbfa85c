#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/readiness.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

/// What ddp and the sharded strategies have in common: the layout found in the first step, buckets that go out while
/// backward runs, the tail of sums and flags, unused parameters, module buffers.
class BucketedStrategy : public Strategy {
 public:
  int rank() const noexcept override { return communicator_.rank(); }
  int size() const noexcept override { return communicator_.size(); }
  void attach(optim::ParameterArena& arena, const std::vector<optim::NamedTensor>& buffers) override;
  void fix_layout(const std::vector<std::string>& order) override;
  bool layout_is_fixed() const noexcept override { return layout_is_fixed_; }
  void begin_step() override { readiness_->end_step(); }
  void begin_backward(bool last, const StepSums& local) override;
  void fail_step() noexcept override { local_.failed = 1; }
  StepSums finish() override;
  void publish() override;
  double broadcast(double value) override;
  ExchangeStatistics statistics() const override;

 protected:
  BucketedStrategy(comm::Communicator& communicator, const DdpOptions& options, int num_shards);

  comm::Communicator& communicator() noexcept { return communicator_; }
  optim::ParameterArena& arena() const noexcept { return *arena_; }
  const std::vector<Bucket>& buckets() const noexcept { return plan_.buckets; }
  int bucket_of(int segment) const { return plan_.bucket_of_segment[static_cast<std::size_t>(segment)]; }

  /// Starts the exchange of a complete bucket. With `with_tail` its span is to include the attached tail.
  virtual comm::Work send(const Bucket& bucket, int index, bool with_tail) = 0;
  /// Whether the tail may travel in the last bucket.
  virtual bool tail_in_last_bucket() const { return false; }
  /// The buckets have their final place.
  virtual void on_layout() {}
  /// Whether gradients are exchanged in every micro-batch, and what is done with each of them.
  virtual bool sends_every_backward() const noexcept { return false; }
  /// Buckets under way at a time; a further one first waits for the oldest.
  virtual std::size_t max_in_flight() const noexcept { return SIZE_MAX; }
  virtual std::function<void(int)> on_gradient() { return {}; }
  /// For destructors of classes whose members the works under way use.
  void drop_works() { works_.clear(); }
  /// After the update, before module buffers are exchanged.
  virtual void publish_values() {}

 private:
  void set_plan(const std::vector<int>& order);
  std::vector<std::string> bucket_labels() const;
  std::vector<int> agree_on_order();
  void send_bucket(int index);
  void send_tail();
  void wait_for_exchange();
  void write_tail();
  StepSums read_tail();
  void judge_unused(StepSums& sums, const std::vector<double>& flags);
  void check_loss_scales(double sum, double sum_of_squares);

  comm::Communicator& communicator_;
  const DdpOptions options_;
  const int num_shards_;
  optim::ParameterArena* arena_ = nullptr;
  std::vector<optim::NamedTensor> buffers_;
  BucketPlan plan_;
  std::vector<std::string> labels_;  // of the buckets, for errors
  std::unique_ptr<GradientReadiness> readiness_;
  std::vector<comm::Work> works_;
  StepSums local_;
  ExchangeStatistics statistics_;
  bool layout_is_fixed_ = false;
  bool is_last_ = false;
  bool is_in_backward_ = false;
  bool counts_are_known_ = false;
  bool static_counts_are_known_ = false;
  UnusedParameters unused_mode_;
  std::int64_t steps_watched_ = 0;  // while unused_mode_ is kAuto
  bool some_were_unused_ = false;
};

}  // namespace lockstep::parallel
