#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dist/run_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {
namespace {

using ::lockstep::testing::RankContext;
using ::lockstep::testing::run_ranks;
using optim::NamedTensor;
using ::testing::HasSubstr;

std::vector<NamedTensor> named(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  for (const auto& entry : module.named_parameters()) tensors.push_back({entry.key(), entry.value()});
  return tensors;
}

torch::nn::Sequential make_net(std::uint64_t seed, std::int64_t hidden = 6) {
  torch::manual_seed(seed);
  torch::nn::Sequential net(torch::nn::Linear(5, hidden), torch::nn::Tanh(), torch::nn::Linear(hidden, hidden),
                            torch::nn::Tanh(), torch::nn::Linear(hidden, 3));
  net->to(at::kDouble);
  return net;
}

std::unique_ptr<comm::Communicator> connect(RankContext& context) {
  return comm::make_shm_communicator(context.store, context.rank, context.world, {});
}

at::Tensor batch_of(int rank) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 + rank));
  return at::randn({3 + rank, 5}, generator, at::kDouble);  // uneven on purpose
}

class Ddp : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Ddp, ::testing::Values(1, 2, 3, 4));

// Buckets of one parameter each, so that order, overlap and the tail are all exercised, over several steps and with
// gradients that add up before the last backward.
TEST_P(Ddp, GradientsAreSumsOverRanksAndMicroBatches) {
  const int world = GetParam();
  run_ranks(world, [world](RankContext& context) {
    const auto communicator = connect(context);
    auto net = make_net(7);
    optim::ParameterArena arena(named(*net));
    const auto strategy = make_ddp(*communicator, {.bucket_bytes = 8, .first_bucket_bytes = 8});
    strategy->attach(arena, {});

    auto twin = make_net(7);
    const auto loss = [](torch::nn::Sequential& model, const at::Tensor& input) {
      return model->forward(input).pow(2).sum();
    };
    for (int step = 0; step < 3; ++step) {
      arena.zero_gradients();
      strategy->begin_backward(false, {});
      loss(net, batch_of(context.rank)).backward();
      strategy->begin_backward(true, {.count = 2.0 + context.rank, .loss = 1.5, .loss_count = 1, .stop = false});
      loss(net, batch_of(context.rank) * 2).backward();
      const StepSums sums = strategy->finish();
      EXPECT_DOUBLE_EQ(sums.count, 2.0 * world + world * (world - 1) / 2.0);
      EXPECT_DOUBLE_EQ(sums.loss, 1.5 * world);
      EXPECT_FALSE(sums.stop);
    }
    twin->zero_grad();
    for (int rank = 0; rank < world; ++rank) {
      loss(twin, batch_of(rank)).backward();
      loss(twin, batch_of(rank) * 2).backward();
    }
    for (std::size_t p = 0; p < twin->parameters().size(); ++p) {
      EXPECT_LE((net->parameters()[p].grad() - twin->parameters()[p].grad()).abs().max().item<double>(), 1e-12) << p;
    }
  });
}

TEST(DdpStart, WeightsAndBuffersAreRankZeros) {
  run_ranks(3, [](RankContext& context) {
    const auto communicator = connect(context);
    auto net = make_net(static_cast<std::uint64_t>(context.rank));
    optim::ParameterArena arena(named(*net));
    const auto buffer = at::full({4}, context.rank, at::kLong);
    const auto strategy = make_ddp(*communicator, {});
    strategy->attach(arena, {{"counts", buffer}});
    auto expected = make_net(0);
    for (std::size_t p = 0; p < expected->parameters().size(); ++p) {
      EXPECT_TRUE(at::equal(net->parameters()[p], expected->parameters()[p])) << p;
    }
    EXPECT_TRUE(at::equal(buffer, at::zeros({4}, at::kLong)));
  });
}

TEST(DdpStart, ModelsThatDifferAreRefusedOnAllRanksWithTheDifference) {
  run_ranks(3, [](RankContext& context) {
    const auto communicator = connect(context);
    auto net = make_net(1, context.rank == 2 ? 7 : 6);
    optim::ParameterArena arena(named(*net));
    const auto strategy = make_ddp(*communicator, {});
    try {
      strategy->attach(arena, {});
      ADD_FAILURE() << "attached on rank " << context.rank;
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("model of rank 2 differs from rank 0's: rank 0 has 0.weight Double [6,5], "
                                          "rank 2 has 0.weight Double [7,5]"));
    }
  });
}

TEST(DdpStep, AParameterThatOneRankDidNotUseCountsAsZeroThere) {
  run_ranks(2, [](RankContext& context) {
    const auto communicator = connect(context);
    auto used = at::ones({3}, at::kDouble).requires_grad_();
    auto sometimes = at::ones({2}, at::kDouble).requires_grad_();
    optim::ParameterArena arena({{"used", used}, {"sometimes", sometimes}});
    const auto strategy = make_ddp(*communicator, {.bucket_bytes = 8, .first_bucket_bytes = 8});
    strategy->attach(arena, {});
    strategy->begin_backward(true, {.count = 1, .stop = context.rank == 1});
    auto loss = (used * 2).sum();
    if (context.rank == 0) loss = loss + (sometimes * 5).sum();
    loss.backward();
    EXPECT_TRUE(strategy->finish().stop) << "one rank's wish to stop reaches all";
    EXPECT_TRUE(at::equal(used.grad(), at::full({3}, 4.0, at::kDouble)));
    EXPECT_TRUE(at::equal(sometimes.grad(), at::full({2}, 5.0, at::kDouble)));
  });
}

TEST(Buckets, CoverTheBuffersInOrderAndSplitIntoShards) {
  auto net = make_net(1);
  net->push_back(torch::nn::Linear(3, 3));
  net->modules().back()->to(at::kFloat);
  optim::ParameterArena arena(named(*net));
  ASSERT_EQ(arena.buffers().size(), 2U);
  for (const std::int64_t limit : {1, 300, 1 << 20}) {
    for (const int shards : {1, 2, 3}) {
      const auto plan = plan_buckets(arena, layout_order(arena),
                                     {.first_bucket_bytes = limit, .bucket_bytes = limit, .num_shards = shards});
      std::vector<std::int64_t> end(2, 0);
      std::vector<int> seen;
      for (const auto& bucket : plan.buckets) {
        const auto b = static_cast<std::size_t>(bucket.buffer);
        EXPECT_EQ(bucket.begin, end[b]) << "limit " << limit;
        EXPECT_EQ((bucket.end - bucket.begin) % shards, 0);
        end[b] = bucket.end;
        seen.insert(seen.end(), bucket.segments.begin(), bucket.segments.end());
      }
      EXPECT_EQ(end, plan.layout.numel);
      std::sort(seen.begin(), seen.end());
      EXPECT_THAT(seen, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    }
  }
}

}  // namespace
}  // namespace lockstep::parallel
