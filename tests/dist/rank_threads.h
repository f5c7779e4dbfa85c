#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include "lockstep/comm/communicator.h"

namespace lockstep::testing {

/// Runs `body` once a rank, in threads over the local communicator: milliseconds instead of the seconds that processes
/// take. Returns what each rank threw, or "".
inline std::vector<std::string> run_threads(int world, const std::function<void(comm::Communicator&)>& body,
                                            std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  auto communicators = comm::make_local_communicators(world, {.timeout = timeout});
  std::vector<std::string> errors(communicators.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < communicators.size(); ++r) {
    threads.emplace_back([&, r] {
      at::set_num_threads(1);  // or waiting OpenMP threads take the time of working ranks
      try {
        body(*communicators[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
      communicators[r].reset();
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

/// The same, where no rank may throw.
inline void run_threads_ok(int world, const std::function<void(comm::Communicator&)>& body) {
  const auto errors = run_threads(world, body);
  for (std::size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

}  // namespace lockstep::testing
