#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "lockstep/comm/communicator.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/engine.h"
#include "numerics/referee_models.h"

namespace lockstep {

/// How a case is replayed: under which strategy, and with our kernels or ATen's operations.
struct ReplayOptions {
  std::string strategy;  ///< single, ddp, dp, zero1, zero2
  bool fuse = true;
};

/// One rank of a training run of the Python referee, replayed: same initial weights, same batches. The weights at the
/// end, every loss, the first step's gradients and the gradient norms must agree within the case's tolerance; each that
/// does not fails the current test.
class Replay {
 public:
  /// `folder` is what `numerics.py write` left; `communicator` is borrowed.
  Replay(std::filesystem::path folder, const ReplayOptions& options, comm::Communicator& communicator);
  /// Returns the largest difference of a weight or buffer at the end.
  double run();

 private:
  using Tensors = std::map<std::string, at::Tensor>;

  train::EngineOptions engine_options();
  std::unique_ptr<parallel::Strategy> make_strategy(const std::string& name);
  bool has_data(std::size_t step) const;
  void replay_step(std::size_t step, const nlohmann::json& expected);
  void compare_first_gradients(double scale, const std::vector<char>& unused);
  double compare(const std::vector<optim::NamedTensor>& ours, const Tensors& expected, double tolerance,
                 std::string_view what);

  const std::filesystem::path folder_;
  const ReplayOptions options_;
  comm::Communicator& communicator_;
  const nlohmann::json run_;
  const Tensors batches_;
  RefereeModel model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<parallel::Strategy> strategy_;
  std::unique_ptr<train::Engine> engine_;
};

}  // namespace lockstep
