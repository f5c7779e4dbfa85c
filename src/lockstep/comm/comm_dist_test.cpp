#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "dist/run_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/comm/comm_test_cases.h"

namespace lockstep::comm {
namespace {

using ::lockstep::testing::ExpectedEnd;
using ::lockstep::testing::RankContext;
using ::lockstep::testing::run_ranks;
using ::lockstep::testing::RunRanksOptions;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace comm::testing;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

std::unique_ptr<Communicator> make(RankContext& context, const CommOptions& options = {}) {
  return make_shm_communicator(context.store, context.rank, context.world, options);
}

CommOptions quick_rendezvous(milliseconds timeout) {
  CommOptions options;
  options.rendezvous_timeout = timeout;
  return options;
}

class Shm : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Shm, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(Shm, EveryCollectiveAtEverySizeAndType) {
  run_ranks(GetParam(), [](RankContext& context) {
    const auto comm = make(context);
    EXPECT_EQ(comm->rank(), context.rank);
    EXPECT_EQ(comm->size(), context.world);
    EXPECT_STREQ(comm->backend(), "shm");
    check_matrix(*comm);
  });
}
TEST_P(Shm, BuffersOfManyPiecesInRankOrderAndOverlapped) {
  run_ranks(GetParam(), [](RankContext& context) {
    const auto comm = make(context);
    check_large(*comm, kLargeCount);
    check_rank_order(*comm);
    for (int round = 0; round < kOverlapRounds; ++round) check_overlap(*comm);
  });
}

TEST(Shm, TwoCommunicatorsOfDifferentNamesAtOnceAndOneNameTwice) {
  run_ranks(3, [](RankContext& context) {
    CommOptions other;
    other.name = "other";
    const auto world = make(context);
    const auto second = make(context, other);
    Values a(Dtype::kF32, 100'000);
    Values b(Dtype::kI32, 50'000);
    a.fill([&](std::size_t i) { return input_value(context.rank, i); });
    b.fill([&](std::size_t i) { return input_value(context.rank, i); });
    Work first_work = world->all_reduce(a.buffer(), ReduceOp::kSum);
    Work second_work = second->all_reduce(b.buffer(), ReduceOp::kMax);
    second_work.wait();
    first_work.wait();
    a.expect("world", [](std::size_t i) { return expected_value(ReduceOp::kSum, 3, i); });
    b.expect("other", [](std::size_t i) { return expected_value(ReduceOp::kMax, 3, i); });
    for (int round = 0; round < 3; ++round) make(context, other)->barrier();
  });
}

TEST(Shm, NothingIsLeftBehind) {
  run_ranks(2, [](RankContext& context) {
    const auto descriptors = [] {
      return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
    };
    const auto before = descriptors();
    {
      const auto comm = make(context);
      comm->barrier();
      // Rank 0's listening socket is closed by now; the sockets between the ranks have no name of their own.
      EXPECT_LE(descriptors(), before + 1) << "one connection, no memory file";
    }
    EXPECT_EQ(descriptors(), before);
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr("lockstep")));
    }
  });
}

TEST(Shm, BR082_AKilledPeerIsNamedInMidCollective) {
  for (int round = 0; round < 20; ++round) {
    RunRanksOptions options;
    options.expected_ends = {ExpectedEnd{.rank = round % 3, .signal = SIGKILL}};
    options.deadline = seconds(20);
    run_ranks(
        3,
        [round](RankContext& context) {
          CommOptions long_timeout;
          long_timeout.timeout = seconds(60);
          const auto comm = make(context, long_timeout);
          std::vector<float> values(2'000'000, 1.0F);
          const int victim = round % 3;
          context.store.set(text("pid", context.rank), text(::getpid()));
          const std::string victim_pid = context.store.get(text("pid", victim), seconds(10));
          std::thread killer;
          if (context.rank == victim) {
            killer = std::thread([round] {
              std::this_thread::sleep_for(std::chrono::microseconds(3000 + round * 1700));
              ::kill(::getpid(), SIGKILL);
            });
          }
          Clock::time_point last_success = Clock::now();
          const std::string message = message_of<CommError>([&] {
            while (true) {
              comm->all_reduce({values.data(), values.size(), Dtype::kF32}, ReduceOp::kMax).wait();
              last_success = Clock::now();
            }
          });
          EXPECT_THAT(message, AllOf(HasSubstr(text("rank ", victim, " (pid ", victim_pid, ") died")),
                                     HasSubstr("all_reduce(max) of 2000000 f32")));
          EXPECT_LT(Clock::now() - last_success, seconds(2));
          EXPECT_GT(Clock::now() - last_success, milliseconds(250)) << "the rank that failed first must end first";
        },
        options);
  }
}

TEST(Shm, ARankThatDiesBetweenCollectivesIsNamed) {
  RunRanksOptions options;
  options.expected_ends = {ExpectedEnd{.rank = 2, .exit_code = 3}};
  run_ranks(
      4,
      [](RankContext& context) {
        const auto comm = make(context);
        comm->barrier();
        if (context.rank == 2) ::_exit(3);
        double value = 0;
        EXPECT_THAT(message_of<CommError>([&] {
                      comm->broadcast({&value, 1, Dtype::kF64}, 0).wait();
                    }),
                    AllOf(HasSubstr("rank 2 (pid "), HasSubstr("died"), HasSubstr("operation #2: broadcast")));
      },
      options);
}

TEST(Shm, PollingFindsADeadPeerToo) {
  RunRanksOptions options;
  options.expected_ends = {ExpectedEnd{.rank = 1, .signal = SIGKILL}};
  run_ranks(
      2,
      [](RankContext& context) {
        const auto comm = make(context);
        comm->barrier();
        if (context.rank == 1) ::raise(SIGKILL);
        double value = 0;
        Work work = comm->all_reduce({&value, 1, Dtype::kF64}, ReduceOp::kSum);
        EXPECT_THAT(message_of<CommError>([&] {
                      while (!work.test()) std::this_thread::sleep_for(milliseconds(1));
                    }),
                    HasSubstr("rank 1 (pid "));
      },
      options);
}

TEST(Shm, BR082_DifferentSizesAreReportedOnEveryRank) {
  run_ranks(2, [](RankContext& context) {
    const auto comm = make(context);
    // Rank 0 reduces 200 Mi elements, rank 1 100 Mi; nothing of the buffer is touched beyond the slots.
    std::vector<std::uint8_t> bytes(context.rank == 0 ? 200U << 20 : 100U << 20);
    const std::string message = message_of<CommError>([&] {
      comm->all_reduce({bytes.data(), bytes.size(), Dtype::kU8}, ReduceOp::kSum).wait();
    });
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0: operation #1: all_reduce(sum) of 209715200 u8"),
                               HasSubstr("rank 1: operation #1: all_reduce(sum) of 104857600 u8")));
  });
}

TEST(Shm, BR041_ARankThatLeftEarlyIsNamedAndOneThatIsDoneIsNoError) {
  run_ranks(3, [](RankContext& context) {
    auto comm = make(context);
    check_all_reduce(*comm, Dtype::kF32, ReduceOp::kSum, 300'000);
    if (context.rank == 1) return;
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_THAT(message_of<CommError>([&] { comm->barrier(); }),
                AllOf(HasSubstr("rank 1 (pid "), HasSubstr("has left"), HasSubstr("operation #2: barrier")));
  });
}

TEST(Shm, BR041_RankZeroMayEndFirst) {
  for (int round = 0; round < 10; ++round) {
    run_ranks(3, [](RankContext& context) {
      const auto comm = make(context);
      check_all_reduce(*comm, Dtype::kF32, ReduceOp::kSum, 1'000'000);
      if (context.rank != 0) std::this_thread::sleep_for(milliseconds(50));
    });
  }
}

TEST(Shm, ATimeoutNamesTheMissingRank) {
  run_ranks(2, [](RankContext& context) {
    CommOptions options;
    options.timeout = milliseconds(300);
    const auto comm = make(context, options);
    comm->barrier();
    if (context.rank == 1) {
      context.store.get("over", seconds(20));
      return;
    }
    EXPECT_THAT(message_of<TimeoutError>([&] { comm->barrier(); }),
                AllOf(HasSubstr("operation #2: barrier"), HasSubstr("rank 1 did not come within 300 ms")));
    context.store.set("over", "");
  });
}

TEST(ShmRendezvous, ARankThatNeverComesIsNamedToAll) {
  run_ranks(4, [](RankContext& context) {
    if (context.rank == 2) return;
    const std::string message = message_of<CommError>([&] { make(context, quick_rendezvous(milliseconds(600))); });
    // The ranks that came learn from rank 0 who is missing.
    EXPECT_THAT(message, HasSubstr("rank 2 of 4 did not appear within 600 ms"));
  });
}

TEST(ShmRendezvous, AMissingRankZeroIsNamed) {
  run_ranks(2, [](RankContext& context) {
    if (context.rank == 0) return;
    EXPECT_THAT(message_of<TimeoutError>([&] { make(context, quick_rendezvous(milliseconds(200))); }),
                HasSubstr("rank 0 did not open communicator \"world\" within 200 ms"));
  });
}

TEST(ShmRendezvous, ARankThatDiesWhileWaitingIsNamedAtOnce) {
  RunRanksOptions options;
  options.expected_ends = {ExpectedEnd{.rank = 1, .signal = SIGKILL}};
  options.deadline = seconds(20);
  run_ranks(
      3,
      [](RankContext& context) {
        if (context.rank == 2) return;  // so that the others wait
        if (context.rank == 1) {
          std::thread([] {
            std::this_thread::sleep_for(milliseconds(300));
            ::raise(SIGKILL);
          }).detach();
        }
        EXPECT_THAT(message_of<CommError>([&] { make(context); }),
                    AllOf(HasSubstr("rank 1 (pid "), HasSubstr("ended")));
      },
      options);
}

/// A store that answers rank `context.rank`'s question for the address with something else.
class TamperedStore final : public Store {
 public:
  TamperedStore(Store& store, std::function<std::string(std::vector<std::string>)> tamper, bool hide_visit = false)
      : store_(store), tamper_(std::move(tamper)), hide_visit_(hide_visit) {}
  void set(std::string_view key, std::string_view value) override { store_.set(key, value); }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    if (hide_visit_ && key.find("/visits/") != std::string_view::npos) return 1;
    return store_.add(key, amount);
  }
  std::string get(std::string_view key, milliseconds timeout) override {
    const std::string value = store_.get(key, timeout);
    return key.ends_with("address") ? tamper_(split(value, ' ')) : value;
  }

 private:
  Store& store_;
  std::function<std::string(std::vector<std::string>)> tamper_;
  bool hide_visit_;
};

/// Rank 1 of 3 sees a tampered address; every rank must report a CommError that contains `expected`.
void expect_refusal(const std::function<std::string(std::vector<std::string>)>& tamper, const std::string& expected) {
  run_ranks(3, [&](RankContext& context) {
    const auto start = Clock::now();
    TamperedStore tampered(context.store, tamper);
    Store& store = context.rank == 1 ? static_cast<Store&>(tampered) : context.store;
    EXPECT_THAT(message_of<CommError>([&] { make_shm_communicator(store, context.rank, 3, {}); }), HasSubstr(expected));
    EXPECT_LT(Clock::now() - start, seconds(5));
  });
}

TEST(ShmRendezvous, AWrongNonceIsRefused) {
  expect_refusal(
      [](std::vector<std::string> words) {
        words[1] = std::string(32, '0');
        return join(words, " ");
      },
      "rank 1: rank 0 closed the connection");
}

TEST(ShmRendezvous, RanksThatAreNotOnOneHostAreRefusedAndBothHostsNamed) {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  expect_refusal(
      [](std::vector<std::string> words) {
        words[0] = "lockstep-nobody-listens-here";
        words[3] = "faraway";
        return join(words, " ");
      },
      text("needs all ranks on one host: rank 1 on host ", host, " cannot reach rank 0 on host faraway"));
}

TEST(ShmRendezvous, DifferentWorldSizesAreRefused) {
  expect_refusal(
      [](std::vector<std::string> words) {
        words[2] = text(5);
        return join(words, " ");
      },
      "rank 1 counts 3 ranks in communicator \"world\", rank 0 counts 5");
}

TEST(ShmRendezvous, AStrangersConnectionDisturbsNobody) {
  run_ranks(2, [](RankContext& context) {
    UniqueFd silent(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    UniqueFd loud(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    TamperedStore strange(context.store, [&](std::vector<std::string> words) {
      for (const UniqueFd* fd : {&silent, &loud}) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path + 1, words[0].data(), words[0].size());
        EXPECT_EQ(::connect(fd->get(), reinterpret_cast<const sockaddr*>(&address),
                            static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + words[0].size())),
                  0);
      }
      EXPECT_EQ(::send(loud.get(), "let me in", 9, MSG_NOSIGNAL), 9);
      return join(words, " ");
    });
    const auto comm = make_shm_communicator(strange, context.rank, 2, {});
    check_all_reduce(*comm, Dtype::kF32, ReduceOp::kSum, 1000);
  });
}

TEST(ShmRendezvous, TwoProcessesOfOneRankAreRefused) {
  run_ranks(3, [](RankContext& context) {
    // Process 2 calls itself rank 1 as well. Visits are counted by rank, so it asks for the first meeting's address.
    TamperedStore mistaken(
        context.store, [](const std::vector<std::string>& words) { return join(words, " "); }, true);
    Store& store = context.rank == 2 ? static_cast<Store&>(mistaken) : context.store;
    const int rank = std::min(context.rank, 1);
    EXPECT_THAT(message_of<CommError>([&] { make_shm_communicator(store, rank, 3, {}); }),
                HasSubstr("call themselves rank 1"));
  });
}

TEST(Shm, EightRanksOnFewProcessorsDoNotTakeSecondsAnOperation) {
  run_ranks(8, [](RankContext& context) {
    const auto comm = make(context);
    const auto start = Clock::now();
    std::vector<float> values(50'000);
    constexpr int kOperations = 40;  // 20 ms each on two processors under a load of ten
    for (int i = 0; i < kOperations; ++i) {
      comm->all_reduce({values.data(), values.size(), Dtype::kF32}, ReduceOp::kSum).wait();
    }
    EXPECT_LT(Clock::now() - start, seconds(1) * kOperations / 2);
  });
}

// A rank that sleeps is rung awake by the one it waits for. When it slept for a stage of its own nobody rang, and each
// operation took a whole slice of 20 ms.
TEST(Shm, ASleeperIsRungAwake) {
  for (const std::size_t count : {std::size_t{1000}, std::size_t{200'000}}) {
    run_ranks(2, [count](RankContext& context) {
      const auto comm = make(context);
      std::vector<float> values(count);
      constexpr int kRounds = 40;
      for (const int late : {0, 1}) {
        const auto start = Clock::now();
        for (int round = 0; round < kRounds; ++round) {
          if (context.rank == late) std::this_thread::sleep_for(milliseconds(2));
          comm->all_reduce({values.data(), values.size(), Dtype::kF32}, ReduceOp::kSum).wait();
        }
        EXPECT_LT(Clock::now() - start, milliseconds(18) * kRounds) << "rank " << late << " was late";
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::comm
