#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/comm/store.h"

namespace lockstep::testing {

/// What one rank's process sees.
struct RankContext {
  int rank = 0;
  int world = 1;
  /// Reached by all ranks of this call, and fresh for each call.
  comm::Store& store;
  /// A folder that all ranks of this call share; removed when the call returns.
  std::filesystem::path folder;
};

/// A rank that is meant to end otherwise than by returning from the body.
struct ExpectedEnd {
  int rank = 0;
  int signal = 0;     ///< that kills it, or 0
  int exit_code = 0;  ///< when no signal does
};

struct RunRanksOptions {
  /// All ranks are killed, and the test fails, when they have not ended by then.
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  std::vector<ExpectedEnd> expected_ends;
  /// Added to the ranks' environment.
  std::map<std::string, std::string> environment;
};

/// Runs `body` in `world` processes, one a rank, and fails the current test (with the last lines of each rank's output)
/// when a rank reports a failed expectation, throws, or ends unexpectedly. Returns when all processes are gone.
///
/// The processes are this test program, started anew for the current test only, so a body starts from a clean process
/// (no threads, no locks held) as real ranks do. A test runs through up to the call, in every rank: what comes before
/// run_ranks() in the test must be cheap, and the same in every process. Several calls in one test are told apart by
/// their order. Nothing that `body` changes is seen by the caller; ranks hand results back through `store` or `folder`.
/// Once one rank has failed, the others get 10 seconds.
void run_ranks(int world, const std::function<void(RankContext&)>& body, const RunRanksOptions& options = {});

/// True in a process that run_ranks() has started.
bool is_rank_process();

}  // namespace lockstep::testing
