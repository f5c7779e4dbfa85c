#include "dist/run_ranks.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;

TEST(RunRanks, EachRankIsAProcessOfItsOwnAndTheyShareAStore) {
  run_ranks(3, [](RankContext& context) {
    context.store.set(text("pid", context.rank), text(::getpid()));
    EXPECT_EQ(context.world, 3);
    for (int other = 0; other < 3; ++other) {
      const bool same = context.store.get(text("pid", other), milliseconds(10000)) == text(::getpid());
      EXPECT_EQ(same, other == context.rank);
    }
  });
}

TEST(RunRanks, SeveralCallsInOneTestAreToldApart) {
  const TemporaryDirectory mine("run-ranks-test");
  const std::string first = (mine.path() / "first").string();
  for (const char* word : {"first", "second"}) {
    RunRanksOptions options;
    options.environment["RUN_RANKS_TEST_FILE"] = (mine.path() / word).string();
    run_ranks(
        2,
        [word](RankContext& context) {
          std::ofstream(std::getenv("RUN_RANKS_TEST_FILE") + text(".", context.rank)) << word;
        },
        options);
  }
  if (is_rank_process()) return;
  for (const char* word : {"first", "second"}) {
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(read_file(mine.path() / text(word, ".", rank)), word);
  }
}

/// Expects that `body`, which calls run_ranks, fails with `message`. A rank must not see the expectation: it would
/// swallow the rank's own failure.
void expect_failure(void (*body)(), const std::string& message) {
  if (is_rank_process()) return body();
  EXPECT_NONFATAL_FAILURE(body(), message);
}

void fail_on_rank_one() {
  run_ranks(2, [](RankContext& context) { EXPECT_EQ(context.rank, 0) << "as asked"; });
}
void throw_on_rank_one() {
  run_ranks(2, [](RankContext& context) {
    if (context.rank == 1) throw std::runtime_error("the reason");
  });
}
void hang_on_rank_one() {
  RunRanksOptions options;
  options.deadline = milliseconds(300);
  run_ranks(
      2,
      [](RankContext& context) {
        if (context.rank == 1) std::this_thread::sleep_for(std::chrono::hours(1));
      },
      options);
}
void die_unexpectedly() {
  run_ranks(2, [](RankContext& context) {
    if (context.rank == 1) ::raise(SIGKILL);
  });
}
void do_not_die_as_expected() {
  RunRanksOptions options;
  options.expected_ends = {{.rank = 1, .signal = SIGKILL}};
  run_ranks(
      2, [](RankContext&) {}, options);
}

TEST(RunRanks, AFailedExpectationInARankFailsTheTest) {
  expect_failure(fail_on_rank_one, "as asked");
}
TEST(RunRanks, AnExceptionInARankFailsTheTest) {
  expect_failure(throw_on_rank_one, "the reason");
}
TEST(RunRanks, AHangIsEndedAtTheDeadline) {
  expect_failure(hang_on_rank_one, "rank 1: still running");
}
TEST(RunRanks, AnUnexpectedDeathFailsTheTest) {
  expect_failure(die_unexpectedly, "rank 1: killed by");
}
TEST(RunRanks, AnExpectedDeathThatDoesNotComeFailsTheTest) {
  expect_failure(do_not_die_as_expected, "rank 1: exit code 0");
}

TEST(RunRanks, AnExpectedDeathIsNoFailure) {
  RunRanksOptions options;
  options.expected_ends = {{.rank = 1, .signal = SIGKILL}, {.rank = 2, .exit_code = 7}};
  run_ranks(
      3,
      [](RankContext& context) {
        if (context.rank == 1) ::raise(SIGKILL);
        if (context.rank == 2) std::exit(7);
      },
      options);
}

}  // namespace
}  // namespace lockstep::testing
