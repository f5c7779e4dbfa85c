// The engine on GPUs that meet through NCCL. NcclOne needs one GPU (label gpu1), NcclTwo two of one host (gpu2).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <cmath>
#include <csignal>
#include <optional>
#include <thread>

#include <torch/torch.h>

#include "dist/engine_rig.h"
#include "dist/rank_threads.h"
#include "dist/run_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/nccl.h"
#include "lockstep/parallel/device_communicator.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/device.h"
#include "lockstep/train/engine.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace lockstep::testing;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;

/// One communicator over `host` on GPU `index`, with limits of the test's own.
std::unique_ptr<comm::Communicator> nccl_over(comm::Communicator& host, int index, comm::CommOptions limits = {}) {
  const auto device = train::prepare_device("cuda", index, host.size());
  return comm::make_nccl_communicator(
      host, {.device = index, .current_stream = parallel::current_stream_of(device), .limits = std::move(limits)});
}

/// Every collective of every type, on values whose sums are exact, against what arithmetic says.
void check_collectives(comm::Communicator& communicator, at::Device device) {
  const int ranks = communicator.size(), rank = communicator.rank();
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte}) {
    for (const std::int64_t count : {1, 7, 1000, 300'001}) {
      const auto options = at::TensorOptions(type).device(device);
      const auto pattern = at::arange(count, at::TensorOptions(at::kLong).device(device)).remainder(5);
      const auto mine = [&](int r) { return (pattern + r).to(type); };
      auto sum = mine(rank).clone(), most = mine(rank).clone(), root = mine(rank).clone();
      auto all = at::empty({ranks, count}, options), part = at::empty({count}, options);
      std::vector<at::Tensor> rows(static_cast<std::size_t>(ranks), mine(rank));
      const auto whole = at::stack(rows);
      using parallel::buffer_of;
      auto first = communicator.all_reduce(buffer_of(sum), comm::ReduceOp::kSum);
      communicator.all_reduce(buffer_of(most), comm::ReduceOp::kMax).wait();
      communicator.broadcast(buffer_of(root), ranks - 1).wait();
      communicator.all_gather(buffer_of(mine(rank).contiguous()), buffer_of(all)).wait();
      communicator.reduce_scatter(buffer_of(whole), buffer_of(part), comm::ReduceOp::kSum).wait();
      first.wait();
      at::Tensor expected = at::zeros_like(sum);
      for (int r = 0; r < ranks; ++r) expected += mine(r);
      EXPECT_TRUE(at::equal(sum, expected)) << type << " " << count;
      EXPECT_TRUE(at::equal(part, expected)) << type << " " << count;
      EXPECT_TRUE(at::equal(most, mine(ranks - 1))) << type << " " << count;
      EXPECT_TRUE(at::equal(root, mine(ranks - 1))) << type << " " << count;
      for (int r = 0; r < ranks; ++r) EXPECT_TRUE(at::equal(all[r], mine(r))) << type << " " << count;
    }
  }
}

struct Job {
  parallel::Sharding sharding = parallel::Sharding::kNone;
  int steps = 12;
  int accumulate = 1;
  bool batch_norm = false;
  std::optional<double> clip_norm = std::nullopt;
};

nn::Sequential net_of(const Job& job) {
  // Behind a bias, batch normalisation makes its gradient zero but for rounding, which Adam then takes for a direction.
  nn::Sequential net(nn::Linear(nn::LinearOptions(4, 6).bias(!job.batch_norm)));
  if (job.batch_norm) net->push_back(nn::BatchNorm1d(6));
  net->push_back(nn::Tanh());
  net->push_back(nn::Linear(6, 3));
  net->to(at::kDouble);
  return with_fixed_values(net);
}

/// Trains on `device`; rank r's batches are those of rank r on whatever device.
std::vector<at::Tensor> trained(comm::Communicator& communicator, at::Device device, const Job& job) {
  auto net = net_of(job);
  net->to(device);
  optim::AdamW optimizer(net->parameters(), {.lr = 0.01, .weight_decay = 0.1});
  const auto strategy =
      parallel::make_strategy(communicator, job.sharding, {.bucket_bytes = 128, .first_bucket_bytes = 64});
  train::Engine engine(*net, optimizer, *strategy,
                       {.clip_norm = job.clip_norm,
                        .sync_batch_norm = job.batch_norm && communicator.size() > 1 ? &communicator : nullptr});
  for (int step = 0; step < job.steps; ++step) {
    for (int micro = 0; micro < job.accumulate; ++micro) {
      // Ranks have batches of different sizes.
      const auto samples = 3 + communicator.rank();
      const auto rows = rows_of(communicator.rank(), step * job.accumulate + micro, samples).to(device);
      engine.micro_step(samples, micro + 1 == job.accumulate, [&] { return loss_of(net, rows); });
    }
  }
  std::vector<at::Tensor> weights;
  for (const auto& parameter : net->parameters()) weights.push_back(parameter.detach().cpu().clone());
  return weights;
}

std::vector<at::Tensor> trained_on_cpu(int world, const Job& job) {
  std::vector<at::Tensor> weights;
  run_threads_ok(world, [&](comm::Communicator& communicator) {
    auto mine = trained(communicator, at::kCPU, job);
    if (communicator.rank() == 0) weights = std::move(mine);
  });
  return weights;
}

const std::vector<Job> kJobs = {
    {},
    {.accumulate = 3, .clip_norm = 0.05},
    {.batch_norm = true},
    {.sharding = parallel::Sharding::kOptimizer, .clip_norm = 0.05},
    {.sharding = parallel::Sharding::kOptimizer, .accumulate = 2},
    {.sharding = parallel::Sharding::kGradients, .clip_norm = 0.05},
    {.sharding = parallel::Sharding::kGradients, .accumulate = 2, .batch_norm = true},
};

void check_against_cpu(comm::Communicator& communicator, at::Device device) {
  for (std::size_t j = 0; j < kJobs.size(); ++j) {
    const auto expected = trained_on_cpu(communicator.size(), kJobs[j]);
    const auto got = trained(communicator, device, kJobs[j]);
    for (std::size_t p = 0; p < got.size(); ++p) {
      EXPECT_LE((got[p] - expected[p]).abs().max().item<double>(), 1e-12) << "job " << j << ", parameter " << p;
    }
  }
}

TEST(NcclOne, CollectivesOfOneRank) {
  const auto host = comm::make_single_communicator();
  const auto communicator = nccl_over(*host, 0);
  check_collectives(*communicator, at::Device(at::kCUDA, 0));
}

TEST(NcclOne, DdpThroughNcclEqualsTheSingleProcess) {
  const auto host = comm::make_single_communicator();
  const auto communicator = nccl_over(*host, 0);
  auto net = make_net(), alone = make_net();
  net->to(at::kCUDA);
  optim::SGD optimizer(net->parameters(), {.lr = 0.1, .momentum = 0.9});
  optim::SGD alone_optimizer(alone->parameters(), {.lr = 0.1, .momentum = 0.9});
  const auto ddp = parallel::make_ddp(*communicator, {});
  const auto single = parallel::make_single();
  train::Engine engine(*net, optimizer, *ddp, {});
  train::Engine alone_engine(*alone, alone_optimizer, *single, {});
  for (int step = 0; step < 20; ++step) {
    engine.micro_step(3, true, [&] { return loss_of(net, rows_of(0, step).to(at::kCUDA)); });
    alone_engine.micro_step(3, true, [&] { return loss_of(alone, rows_of(0, step)); });
  }
  for (std::size_t p = 0; p < net->parameters().size(); ++p) {
    EXPECT_TRUE(at::allclose(net->parameters()[p].cpu(), alone->parameters()[p], 0, 1e-12)) << p;
  }
}

/// While it lives, anything in LibTorch that waits for a GPU throws (torch.cuda.set_sync_debug_mode("error")).
class NothingWaits {
 public:
  explicit NothingWaits(bool is_on)
      : mode_(static_cast<int*>(::dlsym(RTLD_DEFAULT, "_ZZN3c104cuda13warning_stateEvE14warning_state_"))) {
    LOCKSTEP_CHECK(mode_ != nullptr);
    if (is_on) *mode_ = 2;
  }
  ~NothingWaits() { *mode_ = 0; }
  NothingWaits(const NothingWaits&) = delete;
  NothingWaits& operator=(const NothingWaits&) = delete;

 private:
  int* mode_;
};

/// fp16 with clipping, a schedule and bad batches; after some steps nothing may wait, except where the host decides.
struct Fp16Outcome {
  std::vector<at::Tensor> weights;
  std::int64_t steps = 0, skips = 0;
  double scale = 0;
};
Fp16Outcome train_fp16(comm::Communicator& communicator, at::Device device, parallel::Sharding sharding,
                       train::Decisions decisions) {
  auto net = make_net();
  net->to(device, at::kFloat);
  optim::AdamW optimizer(net->parameters(), {.lr = 0.01, .weight_decay = 0.1});
  // make_strategy() would take `single` at one rank.
  const auto strategy = sharding == parallel::Sharding::kNone ? parallel::make_ddp(communicator, {})
                                                              : parallel::make_strategy(communicator, sharding, {});
  train::Engine engine(
      *net, optimizer, *strategy,
      {.clip_norm = 0.5,
       .schedule = optim::Schedule{.base_lr = 0.01, .kind = optim::ScheduleKind::kCosine, .total_steps = 40},
       .precision = amp::Precision::kFp16,
       .scaler = {.initial_scale = 1024, .growth_interval = 5},
       .decisions = decisions});
  std::vector<at::Tensor> batches;
  for (int step = 0; step < 30; ++step) {
    batches.push_back(rows_of(communicator.rank(), step).to(device, at::kFloat));
    if (step % 9 == 4 && communicator.rank() == 0) batches.back().fill_(INFINITY);
  }
  const auto step_on = [&](int step) {
    engine.micro_step(3, true, [&] { return loss_of(net, batches[static_cast<std::size_t>(step)]); });
  };
  for (int step = 0; step < 5; ++step) step_on(step);
  {
    const NothingWaits nothing_waits(decisions != train::Decisions::kOnHost);
    for (int step = 5; step < 30; ++step) step_on(step);
  }
  engine.settle();
  Fp16Outcome outcome{
      .weights = {}, .steps = engine.num_steps(), .skips = engine.scaler()->skips(), .scale = engine.scaler()->scale()};
  for (const auto& parameter : net->parameters()) outcome.weights.push_back(parameter.detach().cpu().clone());
  return outcome;
}

void check_fp16(comm::Communicator& communicator, at::Device device, parallel::Sharding sharding) {
  const auto host = train_fp16(communicator, device, sharding, train::Decisions::kOnHost);
  const auto gpu = train_fp16(communicator, device, sharding, train::Decisions::kAuto);
  EXPECT_EQ(host.skips, 3);
  EXPECT_EQ(gpu.skips, host.skips);
  EXPECT_EQ(gpu.steps, host.steps);
  EXPECT_EQ(gpu.scale, host.scale);
  for (std::size_t p = 0; p < host.weights.size(); ++p) {
    EXPECT_TRUE(at::allclose(gpu.weights[p], host.weights[p], 1e-4, 1e-4)) << "parameter " << p;
  }
}

TEST(NcclOne, AnFp16StepWaitsForNoGpuAndSkipsWhatTheHostWouldSkip) {
  const auto host = comm::make_single_communicator();
  const auto communicator = nccl_over(*host, 0);
  check_fp16(*communicator, at::Device(at::kCUDA, 0), parallel::Sharding::kNone);
}

TEST(NcclTwo, AnFp16StepWaitsForNoGpuAndSkipsWhatTheHostWouldSkip) {
  run_ranks(2, [](RankContext& context) {
    const auto device = train::prepare_device("cuda", context.rank, context.world);
    const auto host = comm::make_shm_communicator(context.store, context.rank, context.world, {});
    const auto communicator = parallel::make_device_communicator(*host, device);
    for (const auto sharding :
         {parallel::Sharding::kNone, parallel::Sharding::kOptimizer, parallel::Sharding::kGradients}) {
      check_fp16(*communicator, device, sharding);
    }
  });
}

TEST(NcclTwo, CollectivesOfProcesses) {
  run_ranks(2, [](RankContext& context) {
    const auto host = comm::make_shm_communicator(context.store, context.rank, context.world, {});
    const auto device = train::prepare_device("cuda", context.rank, context.world);
    const auto communicator = parallel::make_device_communicator(*host, device);
    ASSERT_NE(communicator, nullptr);
    check_collectives(*communicator, device);
  });
}

TEST(NcclTwo, EveryStrategyEqualsTheCpuWithProcesses) {
  run_ranks(2, [](RankContext& context) {
    const auto device = train::prepare_device("cuda", context.rank, context.world);
    const auto host = comm::make_shm_communicator(context.store, context.rank, context.world, {});
    const auto communicator = parallel::make_device_communicator(*host, device);
    check_against_cpu(*communicator, device);
  });
}

TEST(NcclTwo, EveryStrategyEqualsTheCpuWithThreads) {
  ASSERT_EQ(train::load_cuda(), "");
  run_threads_ok(2, [](comm::Communicator& host) {
    const auto device = train::prepare_device("cuda", host.rank(), host.size());
    const auto communicator = parallel::make_device_communicator(host, device);
    check_collectives(*communicator, device);
    check_against_cpu(*communicator, device);
  });
}

// The thread that waits for its GPU is freed, and told why; the process can go on and meet anew.
TEST(NcclTwo, BR041_ARankThatStaysAwayIsNamedWithinTheTimeout) {
  run_ranks(2, [](RankContext& context) {
    const auto host = comm::make_shm_communicator(context.store, context.rank, context.world, {});
    const comm::CommOptions limits{.timeout = milliseconds(1500)};
    auto communicator = nccl_over(*host, context.rank, limits);
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(context.rank));
    auto values = at::ones({1000}, at::TensorOptions(device));
    communicator->all_reduce(parallel::buffer_of(values), comm::ReduceOp::kSum).wait();
    EXPECT_EQ(values.sum().item<float>(), 2000);
    if (context.rank == 0) {
      communicator->label("gradients, bucket 1 of 3: fc.weight to fc.bias");
      communicator->all_reduce(parallel::buffer_of(values), comm::ReduceOp::kSum).wait();
      const auto start = std::chrono::steady_clock::now();
      values.sum().item<float>();
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
      std::string message;
      try {
        communicator->progress();
      } catch (const TimeoutError& error) {
        message = error.what();
      }
      EXPECT_THAT(message, AllOf(HasSubstr("rank 1 did not come within 1.5 s"), HasSubstr("on GPU 0"),
                                 HasSubstr("(gradients, bucket 1 of 3: fc.weight to fc.bias)"),
                                 HasSubstr("rank 1 last began operation #1: all_reduce(sum) of 1000 f32")));
      context.store.set("over", "");
    } else {
      context.store.get("over", std::chrono::seconds(30));
    }
    communicator.reset();
    communicator = nccl_over(*host, context.rank, limits);
    check_collectives(*communicator, device);
  });
}

TEST(NcclTwo, BR082_ARankThatBringsAnotherSizeIsToldToBoth) {
  run_ranks(2, [](RankContext& context) {
    const auto host = comm::make_shm_communicator(context.store, context.rank, context.world, {});
    auto communicator = nccl_over(*host, context.rank, {.timeout = std::chrono::seconds(20)});
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(context.rank));
    auto values = at::ones({100 + context.rank}, at::TensorOptions(device));
    // NCCL may hang in it, until the watcher sees the difference, or bring some sum.
    std::string message;
    try {
      communicator->all_reduce(parallel::buffer_of(values), comm::ReduceOp::kSum).wait();
      values.sum().item<float>();
      for (int i = 0; i < 1000; ++i, std::this_thread::sleep_for(milliseconds(10))) communicator->progress();
    } catch (const CommError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0: operation #1: all_reduce(sum) of 100 f32"),
                               HasSubstr("rank 1: operation #1: all_reduce(sum) of 101 f32")));
  });
}

TEST(NcclTwo, BR041_AKilledRankIsNamed) {
  run_ranks(2,
            [](RankContext& context) {
              const auto host = comm::make_shm_communicator(context.store, context.rank, context.world, {});
              auto communicator = nccl_over(*host, context.rank);
              const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(context.rank));
              auto values = at::ones({1000}, at::TensorOptions(device));
              communicator->all_reduce(parallel::buffer_of(values), comm::ReduceOp::kSum).wait();
              values.sum().item<float>();
              if (context.rank == 1) std::raise(SIGKILL);
              communicator->all_reduce(parallel::buffer_of(values), comm::ReduceOp::kSum).wait();
              values.sum().item<float>();
              std::string message;
              try {
                communicator->progress();
              } catch (const CommError& error) {
                message = error.what();
              }
              EXPECT_THAT(message, HasSubstr("rank 1 died"));
            },
            {.expected_ends = {{.rank = 1, .signal = SIGKILL}}, .environment = {}});
}

}  // namespace
}  // namespace lockstep
