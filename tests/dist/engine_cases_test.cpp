// The training step under conditions that real users met; ranks are threads over the local communicator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include <torch/torch.h>

#include "dist/engine_rig.h"
#include "dist/rank_threads.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/hook.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/engine.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using ::testing::Each;
using ::testing::HasSubstr;
using namespace lockstep::testing;  // NOLINT(google-build-using-namespace)

// ---- parameters that change after the engine was made

TEST(Changes, BR098_AFrozenMovedOrReplacedParameterIsNamed) {
  struct Change {
    std::function<void(nn::Sequential&)> make;
    std::string expected;
  };
  const std::vector<Change> changes{
      {[](auto& net) { net->parameters()[2].set_requires_grad(false); }, "parameter 2.weight was frozen"},
      {[](auto& net) { net->to(at::kFloat); }, "was moved, converted or replaced"},
      {[](auto& net) { net->parameters()[0].mutable_grad() = at::Tensor(); }, "0.weight was given another gradient"}};
  for (const auto& change : changes) {
    const auto errors = run_threads(2, [&](comm::Communicator& communicator) {
      auto net = make_net();
      optim::SGD optimizer(net->parameters(), {.lr = 0.1});
      const auto ddp = parallel::make_ddp(communicator, {});
      train::Engine engine(*net, optimizer, *ddp, {});
      engine.micro_step(3, true, [&] { return loss_of(net, rows_of(communicator.rank(), 0)); });
      change.make(net);
      engine.micro_step(3, true, [&] {
        return net->forward(rows_of(communicator.rank(), 1).to(net->parameters()[0].scalar_type())).square().mean();
      });
    });
    EXPECT_THAT(errors, Each(HasSubstr(change.expected)));
    EXPECT_THAT(errors, Each(HasSubstr("make the engine after such changes")));
  }
}

struct Assigned : nn::Module {
  at::Tensor a = register_parameter("a", at::ones({2}, at::kDouble));
  at::Tensor b = register_parameter("b", at::ones({2}, at::kDouble));
};

// The module's member is another tensor than the registered one: nothing but its missing gradient tells.
TEST(Changes, BR098_ATensorAssignedToALayerIsNamed) {
  const auto errors = run_threads(2, [&](comm::Communicator& communicator) {
    Assigned net;
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const auto ddp = parallel::make_ddp(communicator, {});
    train::Engine engine(net, optimizer, *ddp, {});
    for (int step = 0; step < 12; ++step) {
      if (step == 11) net.b = at::ones({2}, at::kDouble).requires_grad_();
      engine.micro_step(1, true, [&] { return (net.a * net.b).sum(); });
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("no gradient came for b (used by 0 of 2 ranks)")));
  EXPECT_THAT(errors, Each(HasSubstr("assigned")));
}

TEST(Changes, BR098_ANewOptimizerAndEngineTrainOn) {
  Weights weights;
  run_threads_ok(2, [&](comm::Communicator& communicator) {
    auto net = make_net();
    for (int engine_number = 0; engine_number < 2; ++engine_number) {
      optim::SGD optimizer(net->parameters(), {.lr = 0.1});
      const auto ddp = parallel::make_ddp(communicator, {});
      train::Engine engine(*net, optimizer, *ddp, {});
      for (int batch = 0; batch < 3; ++batch) {
        engine.micro_step(3, true, [&] { return loss_of(net, rows_of(communicator.rank(), batch)); });
      }
    }
    weights.put(communicator.rank(), *net);
  });
  weights.expect_equal_on_all_ranks();
}

// ---- unused parameters, static graph

TEST(Unused, OffNamesTheParameterAndTheNumberOfRanksOnAllRanks) {
  const auto errors = run_threads(2, [&](comm::Communicator& communicator) {
    Assigned net;
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const auto ddp = parallel::make_ddp(communicator, {.unused = parallel::UnusedParameters::kOff});
    train::Engine engine(net, optimizer, *ddp, {});
    engine.micro_step(1, true, [&] {
      auto loss = net.a.sum();
      return communicator.rank() == 0 ? loss + net.b.sum() : loss;
    });
  });
  EXPECT_THAT(errors, Each(HasSubstr("no gradient came for b (used by 1 of 2 ranks)")));
}

TEST(Unused, AStaticGraphMayLeaveParametersOutFromTheStart) {
  for (const auto stage : {parallel::ZeroStage::kOptimizer, parallel::ZeroStage::kGradients}) {
    run_threads_ok(2, [&](comm::Communicator& communicator) {
      Assigned net;
      optim::SGD optimizer(net.parameters(), {.lr = 0.1});
      const auto zero = parallel::make_zero(communicator, stage, {.static_graph = true});
      train::Engine engine(net, optimizer, *zero, {});
      for (int step = 0; step < 3; ++step) engine.micro_step(1, true, [&] { return net.a.sum(); });
      EXPECT_TRUE(at::equal(net.b, at::ones({2}, at::kDouble)));
    });
  }
}

TEST(Unused, StaticGraphNamesWhatChanged) {
  const auto errors = run_threads(2, [&](comm::Communicator& communicator) {
    Assigned net;
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const auto ddp = parallel::make_ddp(communicator, {.static_graph = true});
    train::Engine engine(net, optimizer, *ddp, {});
    for (int step = 0; step < 3; ++step) {
      engine.micro_step(1, true, [&] { return step < 2 ? net.a.sum() : net.a.sum() + net.b.sum(); });
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("parameter b got a gradient, which it did not in the first step")));
}

// ---- several forwards, two engines

TEST(Engines, SeveralForwardsBeforeOneBackwardAndTwoModelsInOneProgram) {
  Weights generators, critics;
  run_threads_ok(2, [&](comm::Communicator& communicator) {
    auto generator = make_net();
    nn::Sequential critic(nn::Linear(3, 4), nn::Tanh(), nn::Linear(4, 1));
    critic->to(at::kDouble);
    with_fixed_values(critic, 9);
    optim::Adam generator_optimizer(generator->parameters(), {.lr = 0.01});
    optim::SGD critic_optimizer(critic->parameters(), {.lr = 0.1});
    const auto first = parallel::make_ddp(communicator, {.bucket_bytes = 64, .first_bucket_bytes = 64});
    const auto second = parallel::make_ddp(communicator, {});
    train::Engine generator_engine(*generator, generator_optimizer, *first, {});
    train::Engine critic_engine(*critic, critic_optimizer, *second, {});
    for (int step = 0; step < 4; ++step) {
      const auto noise = rows_of(communicator.rank(), step);
      const auto real = rows_of(communicator.rank(), 100 + step).narrow(1, 0, 3);
      critic_engine.micro_step(3, true, [&] {
        const auto fake = generator->forward(noise).detach();
        return critic->forward(fake).mean() - critic->forward(real).mean();
      });
      generator_engine.micro_step(3, true, [&] { return -critic->forward(generator->forward(noise)).mean(); });
    }
    generators.put(communicator.rank(), *generator);
    critics.put(communicator.rank(), *critic);
  });
  generators.expect_equal_on_all_ranks();
  critics.expect_equal_on_all_ranks();

  // The same by plain LibTorch, where zero_grad() keeps the two losses apart.
  auto generator = make_net();
  nn::Sequential critic(nn::Linear(3, 4), nn::Tanh(), nn::Linear(4, 1));
  critic->to(at::kDouble);
  with_fixed_values(critic, 9);
  torch::optim::Adam generator_optimizer(generator->parameters(), torch::optim::AdamOptions(0.01));
  torch::optim::SGD critic_optimizer(critic->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 4; ++step) {
    const auto noise = at::cat({rows_of(0, step), rows_of(1, step)});
    const auto real = at::cat({rows_of(0, 100 + step), rows_of(1, 100 + step)}).narrow(1, 0, 3);
    critic_optimizer.zero_grad();
    (critic->forward(generator->forward(noise).detach()).mean() - critic->forward(real).mean()).backward();
    critic_optimizer.step();
    generator_optimizer.zero_grad();
    (-critic->forward(generator->forward(noise)).mean()).backward();
    generator_optimizer.step();
  }
  generators.expect_near(generator->parameters(), 1e-10);
  critics.expect_near(critic->parameters(), 1e-10);
}

// ---- layouts

TEST(Layouts, BR097_OddStridesAndGradientsAverageRight) {
  struct Odd : nn::Module {
    nn::Conv2d one{nn::Conv2dOptions(6, 5, 1)};
    at::Tensor transposed, row, expanded;
    Odd() {
      register_module("one", one);
      transposed = register_parameter("transposed", at::zeros({5, 4}, at::kDouble).t().contiguous().t());
      row = register_parameter("row", at::zeros({1, 5}, at::kDouble));
      expanded = register_parameter("expanded", at::zeros({3, 5}, at::kDouble));
      to(at::kDouble);
      one->weight.set_data(one->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
    }
    at::Tensor loss(const at::Tensor& images) {
      const auto features = one->forward(images.contiguous(at::MemoryFormat::ChannelsLast)).mean({2, 3});
      // .sum() of a product with ones gives `expanded` a gradient of stride 0.
      return (at::matmul(features, transposed).square().sum(1) + at::linear(features, row).square().sum(1)).mean() +
             expanded.sum() * features.mean();
    }
  };
  const auto images_of = [](int rank) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank + 5));
    return at::randn({2, 6, 3, 3}, generator, at::kDouble);
  };
  Weights weights;
  run_threads_ok(2, [&](comm::Communicator& communicator) {
    auto net = std::make_shared<Odd>();
    with_fixed_values(net);
    optim::SGD optimizer(net->parameters(), {.lr = 0.1});
    const auto ddp = parallel::make_ddp(communicator, {.bucket_bytes = 128, .first_bucket_bytes = 128});
    train::Engine engine(*net, optimizer, *ddp, {});
    for (int step = 0; step < 3; ++step) {
      engine.micro_step(2, true, [&] { return net->loss(images_of(communicator.rank())); });
    }
    weights.put(communicator.rank(), *net);
  });
  auto net = std::make_shared<Odd>();
  with_fixed_values(net);
  torch::optim::SGD plain(net->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    plain.zero_grad();
    ((net->loss(images_of(0)) + net->loss(images_of(1))) / 2).backward();
    plain.step();
  }
  weights.expect_near(net->parameters(), 1e-12);
}

// ---- module buffers

TEST(Buffers, BR044_RunningStatisticsAreTheSameOnAllRanksAfterEveryStep) {
  for (const auto policy : {parallel::BufferSync::kBroadcast, parallel::BufferSync::kMean}) {
    std::vector<at::Tensor> means(2);
    run_threads_ok(2, [&](comm::Communicator& communicator) {
      nn::Sequential net(nn::Linear(4, 5), nn::BatchNorm1d(5), nn::Linear(5, 2));
      net->to(at::kDouble);
      with_fixed_values(net);
      optim::SGD optimizer(net->parameters(), {.lr = 0.1});
      const auto ddp = parallel::make_ddp(communicator, {.buffers = policy});
      train::Engine engine(*net, optimizer, *ddp, {});
      for (int step = 0; step < 3; ++step) {
        engine.micro_step(3, true, [&] { return loss_of(net, rows_of(communicator.rank(), step)); });
      }
      means[static_cast<std::size_t>(communicator.rank())] = net->buffers()[0].clone();
    });
    EXPECT_TRUE(at::equal(means[0], means[1]));
    EXPECT_GT(means[0].abs().sum().item<double>(), 0);
  }
}

// ---- loss scale

TEST(LossScale, BR014_RanksWithDifferentScalesAreToldBothValues) {
  const auto errors = run_threads(3, [&](comm::Communicator& communicator) {
    auto net = make_net();
    net->to(at::kFloat);
    optim::SGD optimizer(net->parameters(), {.lr = 0.1});
    const auto ddp = parallel::make_ddp(communicator, {});
    train::Engine engine(*net, optimizer, *ddp, {.precision = amp::Precision::kFp16});
    for (int step = 0; step < 4; ++step) {
      if (step == 2) engine.scaler()->load({.scale = communicator.rank() == 1 ? 512. : 1024.});
      engine.micro_step(3, true, [&] { return loss_of(net, rows_of(communicator.rank(), step).to(at::kFloat)); });
    }
  });
  EXPECT_THAT(errors,
              Each(HasSubstr("the ranks' loss scales differ: rank 0 has 1024, rank 1 has 512, rank 2 has 1024")));
}

TEST(LossScale, BR028_OneBadBatchCostsOneSkipAndAPermanentOneEndsTheRun) {
  std::mutex mutex;
  std::vector<at::Tensor> kept;
  run_threads_ok(2, [&](comm::Communicator& communicator) {
    auto net = make_net();
    net->to(at::kFloat);
    optim::SGD optimizer(net->parameters(), {.lr = 0.01});
    const auto ddp = parallel::make_ddp(communicator, {});
    train::Engine engine(*net, optimizer, *ddp,
                         {.precision = amp::Precision::kFp16, .scaler = {.initial_scale = 1024}});
    int skipped = 0;
    for (int step = 0; step < 60; ++step) {
      auto rows = rows_of(communicator.rank(), step).to(at::kFloat);
      if (step % 20 == 7 && communicator.rank() == 1) rows.fill_(std::numeric_limits<float>::quiet_NaN());
      skipped += engine.micro_step(3, true, [&] { return loss_of(net, rows); }).skipped ? 1 : 0;
    }
    EXPECT_EQ(skipped, 3);
    EXPECT_EQ(engine.num_steps(), 57) << "a skipped step does not advance the schedule";
    EXPECT_EQ(engine.scaler()->scale(), 1024 / 8);
    const std::lock_guard lock(mutex);
    kept.push_back(net->parameters()[0].detach().clone());
  });
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_TRUE(at::equal(kept[0], kept[1])) << "the skip is agreed on";
  EXPECT_TRUE(at::isfinite(kept[0]).all().item<bool>());

  const auto errors = run_threads(2, [&](comm::Communicator& communicator) {
    auto net = make_net();
    net->to(at::kFloat);
    optim::SGD optimizer(net->parameters(), {.lr = 0.01});
    const auto ddp = parallel::make_ddp(communicator, {});
    train::Engine engine(*net, optimizer, *ddp, {.precision = amp::Precision::kFp16});
    for (int step = 0; step < 200; ++step) {
      engine.micro_step(3, true, [&] {
        return loss_of(net, rows_of(communicator.rank(), step).to(at::kFloat)) * std::numeric_limits<float>::infinity();
      });
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("not finite in 20 updates in a row, from update 17 on")));
}

TEST(LossScale, BR078_ClippingSeesUnscaledGradientsWithAndWithoutAccumulation) {
  for (const int accumulate : {1, 4}) {
    std::map<amp::Precision, double> norms;
    for (const auto precision : {amp::Precision::kFp32, amp::Precision::kFp16}) {
      auto net = make_net();
      net->to(at::kFloat);
      optim::SGD optimizer(net->parameters(), {.lr = 0.01});
      const auto single = parallel::make_single();
      train::Engine engine(*net, optimizer, *single,
                           {.clip_norm = 1.0, .precision = precision, .scaler = {.initial_scale = 1024}});
      for (int micro = 0; micro < accumulate; ++micro) {
        engine.micro_step(3, micro + 1 == accumulate, [&] { return loss_of(net, rows_of(0, micro).to(at::kFloat)); });
      }
      norms[precision] = engine.last_gradient_norm().value();
    }
    EXPECT_NEAR(norms[amp::Precision::kFp16] / norms[amp::Precision::kFp32], 1, 0.01) << "accumulate " << accumulate;
  }
}

// ---- hooks

TEST(Hooks, PowerSgdOfFullRankSumsExactlyAndALowRankOneLearns) {
  const auto train = [](int rank_of_approximation, std::int64_t steps) {
    Weights weights;
    double last_loss = 0;
    run_threads_ok(2, [&](comm::Communicator& communicator) {
      nn::Sequential net(nn::Linear(4, 16), nn::Tanh(), nn::Linear(16, 3));
      net->to(at::kDouble);
      with_fixed_values(net);
      optim::SGD optimizer(net->parameters(), {.lr = 0.05});
      parallel::DdpOptions options;
      if (rank_of_approximation > 0) {
        options.hook =
            parallel::make_power_sgd_hook({.rank = rank_of_approximation, .start_step = 2, .min_compression = 0});
      }
      const auto ddp = parallel::make_ddp(communicator, options);
      train::Engine engine(*net, optimizer, *ddp, {});
      for (std::int64_t step = 0; step < steps; ++step) {
        const auto result = engine.micro_step(
            3, true, [&] { return loss_of(net, rows_of(communicator.rank(), static_cast<int>(step % 5))); });
        if (communicator.rank() == 0) last_loss = *result.loss;
      }
      weights.put(communicator.rank(), *net);
    });
    weights.expect_equal_on_all_ranks();
    return last_loss;
  };
  EXPECT_NEAR(train(4, 12), train(0, 12), 1e-9) << "with as many columns as the matrix has, nothing is lost";
  const double first = train(1, 3);
  EXPECT_LT(train(1, 150), 0.5 * first);
}

// ---- sharded memory

TEST(Zero, GradientsOfZero2AreAShardAndTwoBuckets) {
  run_threads_ok(4, [&](comm::Communicator& communicator) {
    nn::Sequential net;
    for (int layer = 0; layer < 12; ++layer) net->push_back(nn::Linear(64, 64));
    with_fixed_values(net);
    optim::AdamW optimizer(net->parameters(), {.lr = 0.01});
    const auto zero = parallel::make_zero(communicator, parallel::ZeroStage::kGradients,
                                          {.bucket_bytes = 20000, .first_bucket_bytes = 20000});
    train::Engine engine(*net, optimizer, *zero, {});
    engine.micro_step(3, true, [&] { return net->forward(at::ones({3, 64})).square().mean(); });
    std::int64_t state_numel = 0;
    for (const auto& state : optimizer.state()) state_numel += state.tensor.numel();
    std::int64_t parameters = 0;
    for (const auto& parameter : net->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
      parameters += parameter.numel();
    }
    EXPECT_LE(static_cast<double>(state_numel), 1.05 * 2 * static_cast<double>(parameters) / 4);
  });
}

}  // namespace
}  // namespace lockstep
