#include "lockstep/api/rank_threads.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include "lockstep/host/cpus.h"

namespace lockstep::api {

void run_rank_threads(int size, const std::function<void(int rank, comm::Communicator& communicator)>& body) {
  auto communicators = comm::make_local_communicators(size, {});
  const bool user_set_threads = std::getenv("OMP_NUM_THREADS") != nullptr;
  const int threads_each = std::max(1, host::usable_cpus() / size);
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto run = [&](int rank) {
    if (!user_set_threads) at::set_num_threads(threads_each);
    auto communicator = std::move(communicators[static_cast<std::size_t>(rank)]);
    try {
      body(rank, *communicator);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first_error) first_error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(run, rank);
  }
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace lockstep::api
