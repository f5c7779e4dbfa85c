// A stand-in for lockstep-worker with which the command's own logic is tested: it trains nothing, but reads plan.json
// and writes the events that a run writes. SCRIPT says what goes wrong:
//   (unset)    everything goes well
//   bad-data   exits with 2 before the first step
//   killed-early  is killed by SIGKILL before it records anything
//   killed     rank 1 (or the only one) is killed by SIGKILL after step 3
//   diverged   stops with a fault and exit code 1
//   silent     exits with 0 without a word
//   endless    trains until SIGTERM, then ends as a stopped run does
//   steps      like a whole run, but with 25 step events that take half a second
//   slower     like a run whose images a second are half of single's, unless it is single
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/rank_status.h"
#include "lockstep/base/world.h"
#include "lockstep/config/train_plan.h"
#include "lockstep/telemetry/events.h"

namespace {

volatile std::sig_atomic_t stop_requested = 0;

constexpr int kStepsPerEpoch = 4;

using nlohmann::json;

json start_event(const lockstep::config::TrainPlan& plan) {
  return {{"strategy", plan.strategy},   {"world_size", plan.nproc},          {"device", plan.device},
          {"lr", plan.scaled_lr()},      {"steps_per_epoch", kStepsPerEpoch}, {"global_batch", plan.global_batch()},
          {"resumed_from_step", nullptr}};
}

json epoch_event(const lockstep::config::TrainPlan& plan, std::int64_t epoch, double images_per_second) {
  return {{"epoch", epoch},
          {"steps", kStepsPerEpoch},
          {"train_loss", 1.0 / static_cast<double>(epoch)},
          {"eval_loss", 0.5},
          {"eval_accuracy", 0.75},
          {"seconds", 2.0},
          {"images_per_second", images_per_second},
          {"peak_memory_bytes", std::vector<std::uint64_t>(static_cast<std::size_t>(plan.nproc), 1 << 20)}};
}

int train(const lockstep::config::TrainPlan& plan, const std::string& script) {
  const lockstep::World world = lockstep::world_from_environment(lockstep::process_environment());
  auto board = lockstep::StatusBoard::from_environment();
  if (script == "silent") return 0;
  if (script == "killed-early") std::raise(SIGKILL);
  if (script == "bad-data") {
    lockstep::hand_over_refusal(lockstep::DataError("labels: 12 is out of range", "look at the labels"));
    return 2;
  }
  if (script == "killed" && world.rank == world.size - 1) {
    if (board) board->set_step(world.local_rank, 3);
    std::raise(SIGKILL);
  }
  if (!world.is_main()) {
    // Rank 0 ends the job; the others wait for its stop request, as ranks in a collective would.
    while (script == "killed" || script == "endless") {
      if (stop_requested) return 0;
      ::usleep(10000);
    }
    return 0;
  }
  lockstep::telemetry::EventWriter events(plan.run_dir / "events.jsonl");
  events.write("run_start", start_event(plan));
  if (script == "diverged") {
    events.write("fault", {{"kind", "divergence"}, {"message", "the loss is not finite since step 3"}, {"step", 3}});
    events.write("run_end", {{"exit", "failed"}, {"steps", 3}});
    return 1;
  }
  for (std::int64_t step = 1; script == "endless" || script == "killed" || (script == "steps" && step <= 25); ++step) {
    events.write("step", {{"step", step}, {"epoch", 1}, {"loss", std::nan("")}});
    if (stop_requested) {
      events.write("run_end", {{"exit", "stopped"}, {"steps", step}});
      return 0;
    }
    ::usleep(20000);
  }
  const bool half = script == "slower" && plan.strategy != "single";
  for (std::int64_t epoch = 1; epoch <= plan.epochs; ++epoch)
    events.write("epoch", epoch_event(plan, epoch, half ? 50 : 100));
  events.write("run_end",
               {{"exit", "completed"}, {"steps", plan.epochs * kStepsPerEpoch}, {"final_weights_sha256", "feed"}});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGTERM, [](int) { stop_requested = 1; });
  std::signal(SIGINT, [](int) { stop_requested = 1; });
  if (argc == 2 && std::string(argv[1]) == "why-cpu-only") {
    const char* why = std::getenv("WHY_CPU_ONLY");
    std::fputs(why == nullptr ? "" : why, stdout);
    return 0;
  }
  if (argc != 3 || std::string(argv[1]) != "train") {
    std::fputs("usage: scripted_worker train PLAN.json\n", stderr);
    return 2;
  }
  const char* script = std::getenv("SCRIPT");
  auto plan = lockstep::config::train_plan_from_json(json::parse(lockstep::read_file(argv[2])));
  plan.run_dir = std::filesystem::path(argv[2]).parent_path();
  return train(plan, script == nullptr ? "" : script);
}
