#pragma once

#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  bool adapt_vectors = false;  ///< also for parameters of one dimension; without, those are plain AdamW
};

/// LAMB for large batches (You et al. 2020): AdamW whose step of each parameter is scaled by |value| / |step|. The
/// norms are those of whole parameters, also when the state is sharded.
class Lamb final : public Optimizer {
 public:
  /// Throws ConfigError when an option is out of its range.
  Lamb(std::vector<at::Tensor> parameters, const LambOptions& options);
  const char* name() const noexcept override { return "lamb"; }

 private:
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool by_parameter() const noexcept override { return true; }
  void prepare(const std::vector<Run>& runs, const std::vector<int>& segments) override;
  void update(const Run& run) override;

  const LambOptions options_;
  std::vector<at::Tensor> directions_;  // of each run of the step
  std::vector<double> ratios_;
  std::size_t next_ = 0;
};

struct LarsOptions {
  double lr = 0.1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  double trust = 0.001;
  double eps = 1e-8;
  bool adapt_vectors = false;  ///< also for parameters of one dimension; without, those are plain SGD and do not decay
};

/// LARS for large batches of images (You et al. 2017): SGD with momentum whose rate for each parameter is scaled by
/// trust * |value| / (|gradient| + weight_decay * |value|).
class Lars final : public Optimizer {
 public:
  /// Throws ConfigError when an option is out of its range.
  Lars(std::vector<at::Tensor> parameters, const LarsOptions& options);
  const char* name() const noexcept override { return "lars"; }

 private:
  std::vector<std::string> state_names() const override { return {"momentum_buffer"}; }
  bool by_parameter() const noexcept override { return true; }
  void prepare(const std::vector<Run>& runs, const std::vector<int>& segments) override;
  void update(const Run& run) override;

  const LarsOptions options_;
  std::vector<double> ratios_;
  std::vector<char> is_adapted_;
  std::size_t next_ = 0;
};

}  // namespace lockstep::optim
