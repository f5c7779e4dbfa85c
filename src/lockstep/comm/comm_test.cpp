#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/comm_test_cases.h"
#include "lockstep/comm/hash_store.h"
#include "lockstep/comm/store.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace comm::testing;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;

/// Runs `body` with one thread a rank, each with its communicator, which it may move from.
void run_threads(std::vector<std::unique_ptr<Communicator>> communicators,
                 const std::function<void(std::unique_ptr<Communicator>)>& body) {
  std::vector<std::thread> threads;
  for (auto& communicator : communicators) {
    threads.emplace_back([&body, comm = std::move(communicator)]() mutable { body(std::move(comm)); });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_local(int size, const std::function<void(std::unique_ptr<Communicator>)>& body, CommOptions options = {}) {
  run_threads(make_local_communicators(size, options), body);
}

/// Communicators of the shared-memory back end whose ranks happen to be threads of one process.
void run_shm(int size, const std::function<void(std::unique_ptr<Communicator>)>& body, CommOptions options = {}) {
  HashStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { body(make_shm_communicator(store, rank, size, options)); });
  }
  for (std::thread& thread : threads) thread.join();
}

class Local : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Local, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(Local, EveryCollectiveAtEverySizeAndType) {
  run_local(GetParam(), [](std::unique_ptr<Communicator> comm) {
    EXPECT_STREQ(comm->backend(), "local");
    check_matrix(*comm);
  });
}
TEST_P(Local, BuffersOfManyPieces) {
  run_local(GetParam(), [](std::unique_ptr<Communicator> comm) { check_large(*comm, kLargeCount); });
}
TEST_P(Local, OverlappedCollectives) {
  run_local(GetParam(), [](std::unique_ptr<Communicator> comm) {
    for (int round = 0; round < kOverlapRounds; ++round) check_overlap(*comm);
  });
}
TEST_P(Local, SumsInRankOrder) {
  run_local(GetParam(), [](std::unique_ptr<Communicator> comm) { check_rank_order(*comm); });
}
TEST_P(Local, ShmBackEndBetweenThreads) {
  run_shm(GetParam(), [](std::unique_ptr<Communicator> comm) {
    EXPECT_STREQ(comm->backend(), "shm");
    check_all_kinds(*comm, Dtype::kF32, 10007);
    check_overlap(*comm);
  });
}

TEST(SingleCommunicator, CopiesOrDoesNothing) {
  const auto comm = make_single_communicator();
  EXPECT_EQ(comm->size(), 1);
  EXPECT_STREQ(comm->backend(), "single");
  check_matrix(*comm);
}

TEST(Comm, BR082_DifferentSizesAreReportedOnEveryRankWithWhatEachAskedFor) {
  for (const std::size_t larger : {200U, 2'000'000U}) {
    run_local(3, [larger](std::unique_ptr<Communicator> comm) {
      comm->barrier();
      std::vector<float> values(comm->rank() == 1 ? larger : 100);
      const std::string message = message_of<CommError>([&] {
        comm->all_reduce({values.data(), values.size(), Dtype::kF32}, ReduceOp::kSum).wait();
      });
      EXPECT_THAT(message, AllOf(HasSubstr("rank 0: operation #2: all_reduce(sum) of 100 f32"),
                                 HasSubstr(text("rank 1: operation #2: all_reduce(sum) of ", larger, " f32")),
                                 HasSubstr("rank 2: operation #2: all_reduce(sum) of 100 f32")));
      EXPECT_THROW(comm->barrier(), CommError) << "the communicator is unusable afterwards";
    });
  }
}

TEST(Comm, BR041_ARankInAnotherOperationIsReportedByNameAndSequenceNumber) {
  run_local(2, [](std::unique_ptr<Communicator> comm) {
    if (comm->rank() == 0) std::this_thread::sleep_for(milliseconds(50));
    double value = 0;
    const std::string message = message_of<CommError>([&] {
      if (comm->rank() == 0)
        comm->barrier();
      else
        comm->broadcast({&value, 1, Dtype::kF64}, 1).wait();
    });
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0: operation #1: barrier"),
                               HasSubstr("rank 1: operation #1: broadcast(root 1) of 1 f64")));
  });
}

TEST(Comm, BR041_ABarrierThatOnlyOneRankMakesIsAnErrorOnceTheOthersAreDone) {
  run_local(2, [](std::unique_ptr<Communicator> comm) {
    if (comm->rank() == 0) {
      comm->barrier();
      EXPECT_THAT(message_of<CommError>([&] { comm->barrier(); }),
                  AllOf(HasSubstr("rank 1 has left"), HasSubstr("operation #2: barrier")));
    } else {
      comm->barrier();
    }
  });
}

TEST(Comm, DifferentTypesOperationsAndRootsAreReported) {
  const std::function<void(Communicator&, bool)> calls[] = {
      [](Communicator& comm, bool first) {
        std::vector<std::byte> bytes(80);
        comm.all_reduce({bytes.data(), 10, first ? Dtype::kF64 : Dtype::kI64}, ReduceOp::kSum).wait();
      },
      [](Communicator& comm, bool first) {
        float value = 1;
        comm.all_reduce({&value, 1, Dtype::kF32}, first ? ReduceOp::kSum : ReduceOp::kMax).wait();
      },
      [](Communicator& comm, bool first) {
        float value = 1;
        comm.broadcast({&value, 1, Dtype::kF32}, first ? 0 : 1).wait();
      },
  };
  for (const auto& call : calls) {
    run_local(2, [&](std::unique_ptr<Communicator> comm) {
      EXPECT_THAT(message_of<CommError>([&] { call(*comm, comm->rank() == 0); }), HasSubstr("different collectives"));
    });
  }
}

TEST(Comm, ARankMayLeaveOnceItsOwnWorkIsDone) {
  for (int round = 0; round < 20; ++round) {
    run_local(4, [](std::unique_ptr<Communicator> comm) {
      std::this_thread::sleep_for(milliseconds(comm->rank() * 3));
      check_all_reduce(*comm, Dtype::kF32, ReduceOp::kSum, 100'000);
      comm.reset();  // slower ranks may still be copying
    });
  }
}

TEST(Comm, AnExceptionInOneThreadFailsTheOthersAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  run_local(3, [](std::unique_ptr<Communicator> comm) {
    comm->barrier();
    if (comm->rank() == 2) return;  // as unwinding would: the communicator is destroyed
    EXPECT_THAT(message_of<CommError>([&] { comm->barrier(); }), HasSubstr("has left"));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(2000));
}

TEST(Comm, ATimeoutNamesTheMissingRanksAndTheOperation) {
  CommOptions options;
  options.timeout = milliseconds(200);
  options.name = "gradients";
  std::atomic<bool> over{false};
  run_local(
      3,
      [&](std::unique_ptr<Communicator> comm) {
        comm->barrier();
        if (comm->rank() != 0) {
          while (!over) std::this_thread::sleep_for(milliseconds(5));
          return;
        }
        float value = 0;
        const std::string message = message_of<TimeoutError>([&] {
          comm->all_reduce({&value, 1, Dtype::kF32}, ReduceOp::kMin).wait();
        });
        over = true;
        EXPECT_THAT(message, AllOf(HasSubstr("gradients"), HasSubstr("operation #2: all_reduce(min) of 1 f32"),
                                   HasSubstr("ranks 1, 2 did not come within 200 ms"),
                                   HasSubstr("rank 2 last began operation #1")));
      },
      options);
}

TEST(Comm, ASlowRankIsNoError) {
  run_local(2, [](std::unique_ptr<Communicator> comm) {
    for (int round = 0; round < 5; ++round) {
      if (comm->rank() == round % 2) std::this_thread::sleep_for(milliseconds(60));
      check_all_reduce(*comm, Dtype::kF32, ReduceOp::kSum, 70'000);
    }
  });
}

TEST(Comm, WorkThatOutlivesItsCommunicatorFailsInsteadOfHanging) {
  run_local(2, [](std::unique_ptr<Communicator> comm) {
    if (comm->rank() == 1) return;
    std::vector<float> values(10);
    Work work = comm->all_reduce({values.data(), values.size(), Dtype::kF32}, ReduceOp::kSum);
    comm.reset();
    EXPECT_THROW(work.wait(), CommError);
    EXPECT_TRUE(work.test()) << "a failed work no longer borrows its buffer";
  });
}

TEST(Comm, AssigningAWorkWaitsForTheOldOne) {
  run_local(2, [](std::unique_ptr<Communicator> comm) {
    Values first(Dtype::kF32, 5000);
    Values second(Dtype::kF32, 5000);
    for (Values* values : {&first, &second}) values->fill([&](std::size_t i) { return input_value(comm->rank(), i); });
    Work work = comm->all_reduce(first.buffer(), ReduceOp::kSum);
    work = comm->all_reduce(second.buffer(), ReduceOp::kSum);
    first.expect("first", [](std::size_t i) { return expected_value(ReduceOp::kSum, 2, i); });
    work.wait();
    second.expect("second", [](std::size_t i) { return expected_value(ReduceOp::kSum, 2, i); });
  });
}

TEST(Comm, WrongArgumentsAreRefused) {
  run_local(2, [](std::unique_ptr<Communicator> comm) {
    float values[4] = {};
    EXPECT_THROW((void)comm->all_gather({values, 1, Dtype::kF32}, {values, 3, Dtype::kF32}), std::logic_error);
    EXPECT_THROW((void)comm->all_gather({values, 1, Dtype::kF32}, {values, 2, Dtype::kI32}), std::logic_error);
    EXPECT_THROW((void)comm->broadcast({values, 1, Dtype::kF32}, 2), std::logic_error);
    EXPECT_THROW((void)comm->all_reduce({nullptr, 1, Dtype::kF32}, ReduceOp::kSum), std::logic_error);
  });
}

TEST(Comm, EightRanksOnFewProcessorsDoNotTakeSecondsAnOperation) {
  const auto start = std::chrono::steady_clock::now();
  run_local(8, [](std::unique_ptr<Communicator> comm) {
    for (int i = 0; i < 200; ++i) comm->barrier();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));  // 50 ms an operation
}

}  // namespace
}  // namespace lockstep::comm
