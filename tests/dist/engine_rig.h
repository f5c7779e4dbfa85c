#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/torch.h>

#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/engine.h"

namespace lockstep::testing {

namespace nn = torch::nn;

// Initial values come from a fixed generator of the net's own, since ranks share the process's.
template <typename Net>
Net& with_fixed_values(Net& net, std::uint64_t seed = 1) {
  torch::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (auto& parameter : net->parameters()) {
    parameter.copy_(at::randn(parameter.sizes(), generator, at::kDouble) * 0.4);
  }
  return net;
}

inline nn::Sequential make_net() {
  nn::Sequential net(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 3));
  net->to(at::kDouble);
  return with_fixed_values(net);
}

inline at::Tensor rows_of(int rank, int batch, std::int64_t samples = 3) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(1000 * rank + batch + 1));
  return at::randn({samples, 4}, generator, at::kDouble);
}

inline at::Tensor loss_of(nn::Sequential& net, const at::Tensor& rows) {
  return net->forward(rows).square().mean();
}

// make_net() under plain SGD and one strategy.
struct Rig {
  explicit Rig(std::unique_ptr<parallel::Strategy> of, double lr = 0.1)
      : optimizer(net->parameters(), {.lr = lr}), strategy(std::move(of)), engine(*net, optimizer, *strategy, {}) {}

  nn::Sequential net = make_net();
  optim::SGD optimizer;
  std::unique_ptr<parallel::Strategy> strategy;
  train::Engine engine;
};

// Every rank's final weights.
class Weights {
 public:
  void put(int rank, const nn::Module& net) {
    const std::lock_guard lock(mutex_);
    for (const auto& parameter : net.parameters()) all_[rank].push_back(parameter.detach().clone());
  }
  void expect_equal_on_all_ranks() const {
    for (const auto& [rank, values] : all_) {
      for (std::size_t p = 0; p < values.size(); ++p) {
        EXPECT_TRUE(at::equal(values[p], all_.at(0)[p])) << "rank " << rank << ", parameter " << p;
      }
    }
  }
  void expect_near(const std::vector<at::Tensor>& expected, double tolerance) const {
    for (const auto& [rank, values] : all_) {
      for (std::size_t p = 0; p < values.size(); ++p) {
        EXPECT_LE((values[p] - expected[p]).abs().max().item<double>(), tolerance) << "rank " << rank;
      }
    }
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<at::Tensor>> all_;
};

}  // namespace lockstep::testing
