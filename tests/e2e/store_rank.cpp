// A rank that reads and writes the job's store after rank 0 has left: store_rank MILLISECONDS, the longest that the
// others sleep first.
#include <unistd.h>

#include <cstdio>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/c10d/rendezvous.h"

namespace {

void run(const std::string& longest) {
  const lockstep::World world = lockstep::world_from_environment(lockstep::process_environment());
  const auto job = lockstep::c10d::connect_job(world, {});
  if (world.is_main()) {
    job.store->set("greeting", "from rank 0");
    return;
  }
  ::usleep(static_cast<unsigned>(std::random_device()() % (std::stoul(longest) * 1000 + 1)));
  const std::string greeting = job.store->get("greeting", std::chrono::seconds(20));
  job.store->set(lockstep::text("answer.", world.rank), greeting);
  job.store->add("answers", 1);
  std::printf("read '%s'\n", job.store->get(lockstep::text("answer.", world.rank), std::chrono::seconds(1)).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "0");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "store_rank: %s\n", error.what());
    return 1;
  }
}
