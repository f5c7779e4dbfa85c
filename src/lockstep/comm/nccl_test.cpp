// The NCCL communicator over made-up GPUs: what it does when ranks differ, stay away or end. Sums over real GPUs are
// tested on a machine that has them (parallel/gpu).
#include "lockstep/comm/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <latch>
#include <numeric>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/comm_test_cases.h"
#include "lockstep/comm/fake_device.h"
#include "lockstep/comm/hash_store.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace comm::testing;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;

/// What a rank's thread has. Declared in this order: the communicator goes first, its stream last.
struct GpuRank {
  std::deque<std::vector<float>>& memory;  // of the GPU: outlives every rank's streams
  FakeDevice::Stream stream;
  std::unique_ptr<Communicator> host;
  std::unique_ptr<Communicator> device;

  std::vector<float>& make(std::vector<float> values) { return memory.emplace_back(std::move(values)); }
  std::vector<float>& make(std::size_t count, float value) { return make(std::vector<float>(count, value)); }
  Buffer buffer(std::vector<float>& values) const {
    return {values.data(), values.size(), Dtype::kF32, Memory::kDevice};
  }
};

/// Ranks that know each other as threads of one process launch together; as processes, each by itself.
enum class Ranks { kThreads, kProcesses };

void run_gpus(Ranks kind, int size, const std::function<void(GpuRank&)>& body, CommOptions limits = {}) {
  HashStore store;
  auto hosts = make_local_communicators(size, limits);
  std::vector<std::deque<std::vector<float>>> memory(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      GpuRank gpu{memory[static_cast<std::size_t>(rank)], {}, {}, {}};
      gpu.host = kind == Ranks::kThreads ? std::move(hosts[static_cast<std::size_t>(rank)])
                                         : make_shm_communicator(store, rank, size, limits);
      const NcclOptions options{.device = rank, .current_stream = [&gpu] { return &gpu.stream; }, .limits = limits};
      gpu.device = make_nccl_communicator(*gpu.host, options, FakeDevice::api());
      body(gpu);
    });
  }
}

/// What `body`, or anything after it, throws. A thread that waits for its GPU is freed first.
template <typename Failure = CommError>
std::string failure_of(GpuRank& gpu, const std::function<void()>& body) {
  return message_of<Failure>([&] {
    body();
    gpu.stream.synchronize();
    for (;;) {
      gpu.device->progress();
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
}

class Nccl : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Nccl, ::testing::Values(Ranks::kThreads, Ranks::kProcesses),
                         [](const auto& test) { return test.param == Ranks::kThreads ? "Threads" : "Processes"; });

TEST_P(Nccl, QueuesBehindTheCurrentStreamAndTheCurrentStreamWaits) {
  run_gpus(GetParam(), 3, [](GpuRank& gpu) {
    EXPECT_STREQ(gpu.device->backend(), "nccl");
    std::vector<float>&values = gpu.make(5, 0), &seen = gpu.make({});
    // The values are there only once the stream has come to it, and are read by the stream.
    gpu.stream.put([&] {
      std::this_thread::sleep_for(milliseconds(20));
      std::iota(values.begin(), values.end(), static_cast<float>(gpu.device->rank()));
    });
    gpu.device->all_reduce(gpu.buffer(values), ReduceOp::kSum).wait();
    gpu.stream.put([&] { seen = values; });
    gpu.stream.synchronize();
    EXPECT_EQ(seen, (std::vector<float>{3, 6, 9, 12, 15}));
  });
}

TEST_P(Nccl, EveryKindOfCollectiveAndHostMemoryBesideIt) {
  run_gpus(GetParam(), 2, [](GpuRank& gpu) {
    const auto rank = static_cast<float>(gpu.device->rank());
    auto& all = gpu.make({rank, rank + 1, rank + 2, rank + 3});
    auto &part = gpu.make(2, 0), &gathered = gpu.make(4, 0), &root = gpu.make(2, rank);
    gpu.device->reduce_scatter(gpu.buffer(all), gpu.buffer(part), ReduceOp::kSum).wait();
    gpu.device->all_gather(gpu.buffer(part), gpu.buffer(gathered)).wait();
    gpu.device->broadcast(gpu.buffer(root), 1).wait();
    gpu.stream.synchronize();
    EXPECT_EQ(gathered, (std::vector<float>{1, 3, 5, 7}));
    EXPECT_EQ(root, (std::vector<float>{1, 1}));
    check_all_reduce(*gpu.device, Dtype::kBF16, ReduceOp::kMax, 1000);
    gpu.device->barrier();
  });
}

TEST_P(Nccl, OverlappedCollectivesAndTestSayWhenEachIsDone) {
  run_gpus(GetParam(), 4, [](GpuRank& gpu) {
    for (int round = 0; round < 50; ++round) {
      std::vector<std::vector<float>*> values;
      std::vector<Work> works;
      for (int i = 0; i < 6; ++i) values.push_back(&gpu.make(7, 1));
      for (auto* each : values) works.push_back(gpu.device->all_reduce(gpu.buffer(*each), ReduceOp::kSum));
      while (!works.back().test()) std::this_thread::yield();
      for (auto& work : works) EXPECT_TRUE(work.test());
      for (const auto* each : values) EXPECT_EQ(*each, std::vector<float>(7, 4));
    }
  });
}

TEST_P(Nccl, BR041_ARankMayLeaveOnceItsOwnWorkIsDone) {
  run_gpus(GetParam(), 3, [](GpuRank& gpu) {
    auto& values = gpu.make(100, 1);
    gpu.device->all_reduce(gpu.buffer(values), ReduceOp::kSum).wait();
    if (gpu.device->rank() == 0) gpu.device.reset();
    gpu.stream.synchronize();
    EXPECT_EQ(values[99], 3);
  });
}

TEST_P(Nccl, BR082_ARankThatBringsAnotherSizeIsToldToAll) {
  run_gpus(GetParam(), 2, [](GpuRank& gpu) {
    auto buffer = gpu.buffer(gpu.make(101, 1));
    if (gpu.device->rank() == 0) buffer.count = 100;
    gpu.device->label("bucket 1 of 2: fc.weight");
    EXPECT_THAT(failure_of(gpu, [&] { gpu.device->all_reduce(buffer, ReduceOp::kSum).wait(); }),
                AllOf(HasSubstr("ask for different collectives"),
                      HasSubstr("rank 0: operation #1: all_reduce(sum) of 100 f32 (bucket 1 of 2: fc.weight)"),
                      HasSubstr("rank 1: operation #1: all_reduce(sum) of 101 f32")));
  });
}

TEST_P(Nccl, BR082_ARankThatSkipsABucketOfTheSameSizeIsFound) {
  run_gpus(GetParam(), 2, [](GpuRank& gpu) {
    auto &first = gpu.make(8, 1), &second = gpu.make(8, 1);
    const auto step = [&] {
      if (gpu.device->rank() == 0) {
        gpu.device->label("bucket 1");
        gpu.device->all_reduce(gpu.buffer(first), ReduceOp::kSum).wait();
      }
      gpu.device->label("bucket 2");
      gpu.device->all_reduce(gpu.buffer(second), ReduceOp::kSum).wait();
    };
    EXPECT_THAT(failure_of(gpu, step), AllOf(HasSubstr("rank 0: operation #1: all_reduce(sum) of 8 f32"),
                                             AnyOf(HasSubstr("(bucket 1)"), HasSubstr("(bucket 2)"))));
  });
}

TEST_P(Nccl, ARankThatDoesNotComeIsNamedWithTheCollectiveItsLabelAndWhereItWas) {
  CommOptions limits;
  limits.timeout = milliseconds(200);
  limits.name = "gradients";
  std::latch over(2);
  run_gpus(
      GetParam(), 2,
      [&](GpuRank& gpu) {
        auto& values = gpu.make(3, 1);
        gpu.device->broadcast(gpu.buffer(values), 0).wait();
        if (gpu.device->rank() == 1) return over.arrive_and_wait();
        gpu.device->label("gradients, bucket 1 of 1: a to z");
        EXPECT_THAT(
            failure_of<TimeoutError>(gpu, [&] { gpu.device->all_reduce(gpu.buffer(values), ReduceOp::kSum).wait(); }),
            AllOf(HasSubstr("communicator \"gradients\" on GPU 0 in operation #2: all_reduce(sum) of 3 f32 "
                            "(gradients, bucket 1 of 1: a to z): rank 1 did not come within 200 ms"),
                  HasSubstr("rank 1 last began operation #1: broadcast(root 0) of 3 f32")));
        over.arrive_and_wait();
      },
      limits);
}

TEST_P(Nccl, AGpuThatIsMerelyBehindIsNoMissingRank) {
  CommOptions limits;
  limits.timeout = milliseconds(150);
  std::latch over(2), hold(1);
  run_gpus(
      GetParam(), 2,
      [&](GpuRank& gpu) {
        if (gpu.device->rank() == 1) gpu.stream.put([&] { hold.wait(); });
        auto work = gpu.device->all_reduce(gpu.buffer(gpu.make(3, 1)), ReduceOp::kSum);
        if (gpu.device->rank() == 0) {
          EXPECT_THAT(failure_of(gpu, [] {}), AllOf(HasSubstr("all ranks have come"), Not(HasSubstr("did not come"))));
        }
        over.arrive_and_wait();
        if (gpu.device->rank() == 1) hold.count_down();
        gpu.stream.synchronize();
      },
      limits);
}

TEST_P(Nccl, ARankThatFailsOrLeavesEndsTheWaitOfTheOthers) {
  for (const bool in_order : {true, false}) {
    run_gpus(GetParam(), 3, [in_order](GpuRank& gpu) {
      const auto exchange = [&gpu] { gpu.device->all_reduce(gpu.buffer(gpu.make(3, 1)), ReduceOp::kSum).wait(); };
      exchange();
      if (gpu.device->rank() == 2) {
        if (in_order) return gpu.device.reset();
        try {
          const auto device = std::move(gpu.device);
          throw std::runtime_error("out of memory");
        } catch (const std::runtime_error&) {
          return;
        }
      }
      EXPECT_THAT(failure_of(gpu, exchange), AllOf(HasSubstr("rank 2 has "), HasSubstr("needs it (rank 2 ")));
    });
  }
}

TEST_P(Nccl, WhatNcclReportsIsToldWithRankAndGpu) {
  run_gpus(GetParam(), 2, [](GpuRank& gpu) {
    gpu.device->barrier();
    FakeDevice::set_async_error(3);
    EXPECT_THAT(failure_of(gpu, [] {}), AllOf(HasSubstr("on GPU"), HasSubstr("an NCCL error")));
    gpu.host->barrier();
    FakeDevice::set_async_error(0);
  });
}

TEST(NcclStart, TwoRanksOnOneGpuAreRefusedByName) {
  FakeDevice::put_all_on_one_bus(true);
  auto hosts = make_local_communicators(2, {});
  std::vector<std::jthread> threads;
  for (auto& host : hosts) {
    threads.emplace_back([&host] {
      FakeDevice::Stream stream;
      EXPECT_THAT(message_of<ConfigError>([&] {
                    make_nccl_communicator(*host, {.device = 0, .current_stream = [&] { return &stream; }},
                                           FakeDevice::api());
                  }),
                  HasSubstr("ranks 0 and 1 are both on the GPU at 0000:01:00.0"));
    });
  }
  threads.clear();
  FakeDevice::put_all_on_one_bus(false);
}

TEST(NcclStart, AStartUpThatHangsEndsInAnError) {
  FakeDevice::hang_start_up();
  CommOptions limits;
  limits.rendezvous_timeout = milliseconds(100);
  auto hosts = make_local_communicators(1, limits);
  FakeDevice::Stream stream;
  EXPECT_THAT(message_of<TimeoutError>([&] {
                make_nccl_communicator(*hosts[0], {.current_stream = [&] { return &stream; }, .limits = limits},
                                       FakeDevice::api());
              }),
              HasSubstr("NCCL did not connect the 1 GPUs within 100 ms"));
  FakeDevice::release_start_up();
}

TEST(NcclStart, DeviceMemoryIsRefusedByTheRanksSharedMemory) {
  auto hosts = make_local_communicators(2, {});
  float value = 0;
  EXPECT_THAT(message_of<CommError>([&] {
                hosts[0]->all_reduce({&value, 1, Dtype::kF32, Memory::kDevice}, ReduceOp::kSum).wait();
              }),
              HasSubstr("a tensor on a GPU cannot go through the ranks' shared memory"));
}

}  // namespace
}  // namespace lockstep::comm
