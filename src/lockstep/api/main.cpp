#include "lockstep/api/main.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/api/rank_context.h"
#include "lockstep/api/rank_threads.h"
#include "lockstep/api/session.h"
#include "lockstep/api/stop_signals.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank_status.h"
#include "lockstep/base/text.h"
#include "lockstep/c10d/rendezvous.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/train/device.h"

namespace lockstep {

namespace {

struct ProgramOptions {
  int nproc = 1;
  bool nproc_given = false;
  std::string strategy = "ddp";
  std::string device = "auto";
  std::uint64_t seed = 0;
  std::vector<std::string> rest;          // the program's own arguments
  std::vector<std::string> for_children;  // everything but --nproc
};

long long whole_number(const std::string& flag, const std::string& word, long long low, long long high) {
  long long value = 0;
  if (!parse_number(word, value) || value < low || value > high) {
    throw ConfigError(text(flag, " '", word, "': expected a whole number from ", low, " to ", high));
  }
  return value;
}

std::string choice(const std::string& flag, const std::string& word, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), word) != choices.end()) return word;
  throw ConfigError(text(flag, " '", word, "': expected one of ", join(choices, ", ")));
}

ProgramOptions parse(int argc, char** argv) {
  ProgramOptions options;
  const std::vector<std::string> words(argv, argv + argc);
  for (std::size_t w = 0; w < words.size(); ++w) {
    const auto equals = words[w].find('=');
    const std::string flag = words[w].substr(0, equals);
    const bool is_ours = flag == "--nproc" || flag == "--strategy" || flag == "--device" || flag == "--seed";
    if (w == 0 || !is_ours) {
      options.rest.push_back(words[w]);
      options.for_children.push_back(words[w]);
      continue;
    }
    if (equals == std::string::npos && w + 1 == words.size()) throw ConfigError(text(flag, " needs a value"));
    const std::string value = equals == std::string::npos ? words[++w] : words[w].substr(equals + 1);
    if (flag == "--nproc") {
      options.nproc = static_cast<int>(whole_number(flag, value, 1, 4096));
      options.nproc_given = true;
      continue;
    }
    if (flag == "--strategy") options.strategy = choice(flag, value, {"ddp", "dp"});
    if (flag == "--device") options.device = choice(flag, value, {"auto", "cpu", "cuda"});
    if (flag == "--seed") options.seed = static_cast<std::uint64_t>(whole_number(flag, value, 0, INT64_MAX));
    options.for_children.insert(options.for_children.end(), {flag, value});
  }
  return options;
}

void check_started_once(const ProgramOptions& options, const World& world) {
  if (options.nproc_given && world.source != "single process") {
    throw ConfigError(
        text("--nproc ", options.nproc, " was given to a program that ", world.source, " has already started as rank ",
             world.rank, " of ", world.size, ": that would start ", options.nproc, " more for each"),
        "drop --nproc, or start the program without a launcher");
  }
}

int launch_self(const ProgramOptions& options) {
  launch::LaunchOptions job;
  job.command = options.for_children;
  job.command[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  job.num_processes = options.nproc;
  job.store_server = launch::StoreServer::kRankZero;
  job.tune_openmp = true;
  return launch::launch(job).exit_code;
}

void run_body(api::RankContext& context, const std::function<void(Session&)>& body) {
  if (context.start_turn != nullptr) context.start_turn->wait_for(context.world.rank);
  torch::manual_seed(context.seed);
  Session session(context);
  try {
    body(session);
  } catch (const Stopped&) {
    // The signal's number becomes the exit code.
  } catch (...) {
    context.enter_collective();
    throw;
  }
  context.enter_collective();
}

api::RankContext make_context(const ProgramOptions& options, const World& world, const api::StopSignals& signals) {
  api::RankContext context;
  context.world = world;
  context.device = train::prepare_device(options.device, world.local_rank, world.size);
  context.seed = options.seed;
  context.arguments = options.rest;
  context.stop_signal = &signals.signal();
  return context;
}

// Ranks with different seeds would shuffle differently, so that some samples come twice and some never.
void check_same_seed(comm::Communicator& communicator, std::uint64_t seed) {
  const auto mine = static_cast<std::int64_t>(seed);
  std::vector<std::int64_t> seeds(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({&mine, 1, comm::Dtype::kI64}, {seeds.data(), seeds.size(), comm::Dtype::kI64}).wait();
  for (std::size_t rank = 1; rank < seeds.size(); ++rank) {
    if (seeds[rank] == seeds[0]) continue;
    throw ConfigError(
        text("--seed differs between ranks: rank 0 has ", seeds[0], ", rank ", rank, " has ", seeds[rank]),
        "give every rank the same seed; the sampler already gives each rank samples of its own");
  }
}

// Runs the ranks of this process and returns the signal that asked them to stop, or 0. Signals are remembered only once
// the job is together: a rank that still waits for its peers ends at once, as any program does.
int run_ranks(const ProgramOptions& options, World world, const std::function<void(Session&)>& body) {
  if (options.strategy == "dp" && options.nproc > 1) {
    const api::StopSignals signals;
    api::StartTurn turn;
    api::run_rank_threads(options.nproc, [&](int rank, comm::Communicator& communicator) {
      World thread_world = world;
      thread_world.rank = thread_world.local_rank = rank;
      thread_world.size = thread_world.local_size = options.nproc;
      auto context = make_context(options, thread_world, signals);
      context.communicator = &communicator;
      context.start_turn = &turn;
      run_body(context, body);
    });
    return signals.signal();
  }
  auto job = c10d::connect_job(world, {});
  const api::StopSignals signals;
  auto context = make_context(options, world, signals);
  context.communicator = job.communicator.get();
  check_same_seed(*job.communicator, options.seed);
  run_body(context, body);
  return signals.signal();
}

}  // namespace

int main(int argc, char** argv, const std::function<void(Session&)>& body) {
  std::string who;
  try {
    const auto options = parse(argc, argv);
    const World world = world_from_environment(process_environment());
    check_started_once(options, world);
    if (options.nproc > 1 && options.strategy == "ddp") return launch_self(options);
    if (world.size > 1) who = text("rank ", world.rank, ": ");
    const int signal = run_ranks(options, world, body);
    return signal == 0 ? 0 : 128 + signal;
  } catch (const Error& error) {
    if (!hand_over_refusal(error)) log::error(text(who, error.what()));
    return error.exit_code();
  } catch (const std::exception& error) {
    log::error(text(who, error.what()));
    return 1;
  }
}

}  // namespace lockstep
