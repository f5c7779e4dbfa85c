// Sessions whose ranks are threads of this program.
#include "lockstep/api/session.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include <torch/torch.h>

#include "lockstep/api/main.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;

int run_dp(int ranks, const std::function<void(Session&)>& body) {
  std::vector<std::string> words{"session_test", "--strategy",         "dp", "--device", "cpu",
                                 "--nproc",      std::to_string(ranks)};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  return lockstep::main(static_cast<int>(arguments.size()), arguments.data(), body);
}

/// What clone() of LibTorch gets wrong, or refuses: children that reset() does not make, one child under two names, a
/// scalar parameter, a missing bias, an integer buffer, frozen and half-precision parts.
struct Awkward : nn::Module {
  nn::Linear shared{nn::LinearOptions(3, 3).bias(false)};
  nn::Sequential nested{nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2), nn::ReLU()};
  nn::ModuleList list{nn::Linear(2, 2), nn::Dropout(0.5)};
  nn::ModuleDict dict;
  at::Tensor scale, counter, frozen, half;

  Awkward() {
    register_module("first", shared);
    register_module("second", shared);
    register_module("nested", nested);
    register_module("list", list);
    register_module("dict", dict);
    dict->update({{"late", nn::Linear(2, 1).ptr()}});
    scale = register_parameter("scale", at::randn({}));
    frozen = register_parameter("frozen", at::randn({2}), /*requires_grad=*/false);
    half = register_parameter("half", at::randn({4}).to(at::kHalf));
    counter = register_buffer("counter", at::tensor({3, 4}, at::kLong));
    nested->eval();
  }
};

TEST(Session, BR032_ReplicasOfDpAreBuiltNotClonedSoAnyModuleWillDo) {
  struct Seen {
    std::string name;
    at::Tensor tensor;
    bool requires_grad = false;
  };
  std::mutex mutex;
  std::vector<std::vector<Seen>> replicas;
  const int code = run_dp(3, [&](Session& session) {
    const auto net = session.place(std::make_shared<Awkward>());
    EXPECT_TRUE(net->is_training());
    EXPECT_FALSE(net->nested->is_training());
    EXPECT_EQ(net->named_modules()["first"].get(), net->named_modules()["second"].get()) << "shared within a replica";
    std::vector<Seen> seen;
    for (const auto& entry : net->named_parameters()) {
      seen.push_back({entry.key(), entry.value(), entry.value().requires_grad()});
    }
    for (const auto& entry : net->named_buffers()) seen.push_back({entry.key(), entry.value(), false});
    const std::lock_guard lock(mutex);
    replicas.push_back(std::move(seen));
  });
  EXPECT_EQ(code, 0);
  ASSERT_EQ(replicas.size(), 3u);
  std::set<const void*> storages;
  std::size_t tensors = 0;
  for (const auto& replica : replicas) {
    ASSERT_EQ(replica.size(), replicas[0].size());
    for (std::size_t i = 0; i < replica.size(); ++i) {
      EXPECT_EQ(replica[i].name, replicas[0][i].name);
      EXPECT_TRUE(at::equal(replica[i].tensor, replicas[0][i].tensor)) << replica[i].name;
      EXPECT_EQ(replica[i].requires_grad, replicas[0][i].requires_grad) << replica[i].name;
      if (replica[i].tensor.numel() > 0) storages.insert(replica[i].tensor.const_data_ptr());
      tensors += replica[i].tensor.numel() > 0 && replica[i].name.rfind("second.", 0) != 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(storages.size(), tensors) << "no storage is shared between replicas";
}

TEST(Session, BR096_ACaughtExceptionDropsTheUpdateOnAllRanksAndKeepsTheWindows) {
  std::mutex mutex;
  std::vector<at::Tensor> weights;
  const int code = run_dp(2, [&](Session& session) {
    auto net = session.place(nn::Linear(2, 1));
    optim::SGD optimizer(net->parameters(), {.lr = 0.1});
    auto engine = session.engine(net, optimizer, {.accumulate = 3});
    int updates = 0, caught = 0;
    for (int micro = 0; micro < 12; ++micro) {
      try {
        const auto result = engine.micro_step(2, false, [&]() -> at::Tensor {
          if (micro == 4 && session.rank() == 1) throw std::runtime_error("out of memory");
          return net->forward(at::full({2, 2}, 1.0 * (micro + session.rank()))).square().mean() * 0.001;
        });
        updates += result.updated ? 1 : 0;
      } catch (const std::runtime_error&) {
        ++caught;
      }
    }
    EXPECT_EQ(caught, session.rank());
    EXPECT_EQ(updates, 3);
    EXPECT_EQ(engine.num_steps(), 3);
    const std::lock_guard lock(mutex);
    weights.push_back(net->weight.detach().clone());
  });
  EXPECT_EQ(code, 0);
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_TRUE(at::equal(weights[0], weights[1]));
}

}  // namespace
}  // namespace lockstep
