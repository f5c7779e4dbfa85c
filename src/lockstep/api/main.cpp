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
#include "lockstep/config/help.h"
#include "lockstep/config/program_flags.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/parallel/device_communicator.h"
#include "lockstep/train/device.h"

namespace lockstep {

namespace {

struct ProgramOptions {
  int nproc = 1;
  bool nproc_given = false;
  std::string strategy;
  std::string device;
  std::uint64_t seed = 0;
  bool help_requested = false;
  std::vector<std::string> rest;          // the program's own arguments
  std::vector<std::string> for_children;  // everything but --nproc
};

[[noreturn]] void refuse_word(const config::CommandSpec& spec, const std::string& word) {
  constexpr std::string_view kHint = "--help lists the flags of this program";
  if (!word.starts_with('-'))
    throw ConfigError(text("unexpected word '", word, "': this program takes flags only"), kHint);
  std::vector<std::string> known{"--help"};
  for (const auto& flag : spec.flags) known.push_back(text("--", flag.name));
  throw ConfigError(config::unknown_name("flag", word, known), kHint);
}

ProgramOptions parse(int argc, char** argv, const MainOptions& main_options) {
  static const config::CommandSpec kSpec = config::program_spec();
  ProgramOptions options;
  std::vector<std::string> ours;
  const std::vector<std::string> words(argv, argv + argc);
  for (std::size_t w = 0; w < words.size(); ++w) {
    const std::string name = words[w].substr(0, words[w].find('='));
    const bool is_ours = w > 0 && name.starts_with("--") && kSpec.find(name.substr(2)) != nullptr;
    const bool is_help = w > 0 && !main_options.takes_arguments && (words[w] == "--help" || words[w] == "-h");
    options.help_requested = options.help_requested || is_help;
    if (is_help) continue;
    if (!is_ours) {
      if (w > 0 && !main_options.takes_arguments) refuse_word(kSpec, words[w]);
      options.rest.push_back(words[w]);
      options.for_children.push_back(words[w]);
      continue;
    }
    const std::size_t count = name.size() == words[w].size() && w + 1 < words.size() ? 2 : 1;
    for (std::size_t k = 0; k < count; ++k) {
      ours.push_back(words[w + k]);
      if (name != "--nproc") options.for_children.push_back(words[w + k]);
    }
    w += count - 1;
  }
  const auto values = config::parse_flags(kSpec, ours);
  options.nproc = static_cast<int>(values.integer("nproc"));
  options.nproc_given = values.given("nproc");
  options.strategy = values.text("strategy");
  options.device = values.text("device");
  options.seed = static_cast<std::uint64_t>(values.integer("seed"));
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

api::RankContext make_context(const ProgramOptions& options, const World& world, const api::StopSignals& signals,
                              comm::Communicator& host) {
  api::RankContext context;
  context.world = world;
  context.device = train::prepare_device(options.device, world.local_rank, world.local_size);
  context.device_communicator = parallel::make_device_communicator(host, context.device);
  context.communicator = context.device_communicator ? context.device_communicator.get() : &host;
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
      auto context = make_context(options, thread_world, signals, communicator);
      context.start_turn = &turn;
      run_body(context, body);
    });
    return signals.signal();
  }
  auto job = c10d::connect_job(world, {});
  const api::StopSignals signals;
  auto context = make_context(options, world, signals, *job.communicator);
  check_same_seed(*job.communicator, options.seed);
  run_body(context, body);
  return signals.signal();
}

}  // namespace

int main(int argc, char** argv, const std::function<void(Session&)>& body, const MainOptions& main_options) {
  std::string who;
  try {
    const auto options = parse(argc, argv, main_options);
    if (options.help_requested) {
      const auto name = std::filesystem::path(argv[0]).filename().string();
      std::cout << config::command_help(config::program_spec(), true, name) << std::flush;
      return 0;
    }
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
