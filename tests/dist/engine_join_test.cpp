// Uneven numbers of batches; ranks are threads over the local communicator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "dist/engine_rig.h"
#include "dist/rank_threads.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/engine.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using namespace lockstep::testing;  // NOLINT(google-build-using-namespace)

TEST(Join, BR061_RanksWithMoreBatchesGoOnAndEverySampleCountsOnce) {
  for (const std::string strategy : {"ddp", "zero1", "zero2"}) {
    Weights weights;
    run_threads_ok(3, [&](comm::Communicator& communicator) {
      auto net = make_net();
      optim::SGD optimizer(net->parameters(), {.lr = 0.1, .momentum = 0.9});
      const auto kind = strategy == "ddp"     ? parallel::make_ddp(communicator, {})
                        : strategy == "zero1" ? parallel::make_zero(communicator, parallel::ZeroStage::kOptimizer, {})
                                              : parallel::make_zero(communicator, parallel::ZeroStage::kGradients, {});
      train::Engine engine(*net, optimizer, *kind, {});
      const int rank = communicator.rank();
      for (int batch = 0; batch < 5 + rank; ++batch) {
        engine.micro_step(3, true, [&] { return loss_of(net, rows_of(rank, batch)); });
      }
      EXPECT_EQ(engine.join(), 2 - rank) << "updates made after the own data was used up";
      EXPECT_EQ(engine.num_steps(), 7);
      weights.put(rank, *net);
    });
    auto net = make_net();
    optim::SGD optimizer(net->parameters(), {.lr = 0.1, .momentum = 0.9});
    const auto single = parallel::make_single();
    train::Engine engine(*net, optimizer, *single, {});
    for (int batch = 0; batch < 7; ++batch) {
      std::vector<at::Tensor> rows;
      for (int rank = std::max(0, batch - 4); rank < 3; ++rank) rows.push_back(rows_of(rank, batch));
      const auto all = at::cat(rows);
      engine.micro_step(all.size(0), true, [&] { return loss_of(net, all); });
    }
    weights.expect_equal_on_all_ranks();
    weights.expect_near(net->parameters(), 1e-12);
  }
}

TEST(Join, BR061_ABatchSkippedOnOneRankShiftsNothing) {
  Weights weights;
  run_threads_ok(2, [&](comm::Communicator& communicator) {
    Rig rig(parallel::make_ddp(communicator, {}));
    for (int batch = 0; batch < 5; ++batch) {
      if (communicator.rank() == 1 && batch == 2) continue;
      rig.engine.micro_step(3, true, [&] { return loss_of(rig.net, rows_of(communicator.rank(), batch)); });
    }
    rig.engine.join();
    EXPECT_EQ(rig.engine.num_steps(), 5);
    weights.put(communicator.rank(), *rig.net);
  });
  weights.expect_equal_on_all_ranks();
}

TEST(Join, BR061_WithoutJoinTheRankThatLeftIsNamedInTime) {
  const auto errors = run_threads(
      2,
      [&](comm::Communicator& communicator) {
        auto net = make_net();
        optim::SGD optimizer(net->parameters(), {.lr = 0.1});
        const auto ddp = parallel::make_ddp(communicator, {});
        train::Engine engine(*net, optimizer, *ddp, {});
        for (int batch = 0; batch < 5 + communicator.rank(); ++batch) {
          engine.micro_step(3, true, [&] { return loss_of(net, rows_of(communicator.rank(), batch)); });
        }
      },
      std::chrono::seconds(2));
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(errors[1], HasSubstr("rank 0"));
}

// Rank 0 has 7 batches and rank 1 has 5, three to an update: the last ones of each wait in an open window when it
// joins.
TEST(Join, MicroBatchesThatWaitForAnUpdateCountInIt) {
  for (const bool sharded : {false, true}) {
    Weights weights;
    run_threads_ok(2, [&](comm::Communicator& communicator) {
      auto net = make_net();
      optim::SGD optimizer(net->parameters(), {.lr = 0.1});
      const auto kind = sharded ? parallel::make_zero(communicator, parallel::ZeroStage::kOptimizer, {})
                                : parallel::make_ddp(communicator, {});
      train::Engine engine(*net, optimizer, *kind, {});
      const int rank = communicator.rank();
      for (int batch = 0; batch < (rank == 0 ? 7 : 5); ++batch) {
        engine.micro_step(3, batch % 3 == 2, [&] { return loss_of(net, rows_of(rank, batch)); });
      }
      engine.join();
      weights.put(rank, *net);
    });
    auto net = make_net();
    optim::SGD optimizer(net->parameters(), {.lr = 0.1});
    const auto single = parallel::make_single();
    train::Engine engine(*net, optimizer, *single, {});
    // Updates: three of each; rank 0's next three with rank 1's last two; rank 0's last.
    const std::vector<std::vector<std::pair<int, int>>> windows{
        {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}, {{0, 3}, {0, 4}, {0, 5}, {1, 3}, {1, 4}}, {{0, 6}}};
    for (const auto& window : windows) {
      std::vector<at::Tensor> rows;
      for (const auto& [rank, batch] : window) rows.push_back(rows_of(rank, batch));
      const auto all = at::cat(rows);
      engine.micro_step(all.size(0), true, [&] { return loss_of(net, all); });
    }
    weights.expect_equal_on_all_ranks();
    weights.expect_near(net->parameters(), 1e-12);
  }
}

TEST(Join, Zero2WithAccumulationIsRefusedWithTheReason) {
  const auto errors = run_threads(2, [&](comm::Communicator& communicator) {
    Rig rig(parallel::make_zero(communicator, parallel::ZeroStage::kGradients, {}));
    for (int batch = 0; batch < 4; ++batch) {
      rig.engine.micro_step(3, batch % 2 == 1, [&] { return loss_of(rig.net, rows_of(communicator.rank(), batch)); });
    }
    rig.engine.join();
  });
  EXPECT_THAT(errors, Each(HasSubstr("join() under zero2 with gradient accumulation")));
}

// An error inside an accumulation window: what is under way ends before the memory it uses.
TEST(Zero, AnEngineThatEndsInAnOpenWindowIsTakenDownInOrder) {
  const auto errors = run_threads(2, [&](comm::Communicator& communicator) {
    Rig rig(parallel::make_zero(communicator, parallel::ZeroStage::kGradients, {}));
    rig.engine.micro_step(3, false, [&] { return loss_of(rig.net, rows_of(communicator.rank(), 0)); });
    rig.engine.micro_step(3, false, [&]() -> at::Tensor { throw Error("no loss today"); });
  });
  EXPECT_THAT(errors, Each(HasSubstr("no loss today")));
}

}  // namespace
}  // namespace lockstep
