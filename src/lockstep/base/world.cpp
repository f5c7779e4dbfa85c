#include "lockstep/base/world.h"

#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

namespace {

constexpr long long kMaxWorld = 1 << 20;

class Reader {
 public:
  explicit Reader(const EnvironmentReader& environment) : environment_(environment) {}

  std::optional<std::string> get(const char* name) const { return environment_(name); }

  int integer(const char* name, long long low, long long high, std::optional<int> fallback) const {
    const auto word = environment_(name);
    if (!word) {
      if (fallback) return *fallback;
      throw ConfigError(text(name, " is not set although others of a launcher's variables (RANK, WORLD_SIZE) are"),
                        "start the program with `lockstep run`, torchrun or without any of these variables");
    }
    long long value = 0;
    if (!parse_number(*word, value) || value < low || value > high) {
      throw ConfigError(text(name, "='", *word, "': expected a whole number from ", low, " to ", high));
    }
    return static_cast<int>(value);
  }

 private:
  const EnvironmentReader& environment_;
};

}  // namespace

EnvironmentReader process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

World world_from_environment(const EnvironmentReader& environment) {
  const Reader read(environment);
  World world;
  if (!read.get("RANK") && !read.get("WORLD_SIZE")) return world;

  world.size = read.integer("WORLD_SIZE", 1, kMaxWorld, std::nullopt);
  world.rank = read.integer("RANK", 0, world.size - 1, std::nullopt);
  world.local_size = read.integer("LOCAL_WORLD_SIZE", 1, world.size, world.size);
  world.local_rank = read.integer("LOCAL_RANK", 0, world.local_size - 1,
                                  world.local_size == world.size ? std::optional<int>(world.rank) : std::nullopt);
  world.num_nodes = read.integer("GROUP_WORLD_SIZE", 1, world.size, world.size / world.local_size);
  world.node_rank = read.integer("GROUP_RANK", 0, world.num_nodes - 1, world.rank / world.local_size);
  world.restart_count = read.integer("TORCHELASTIC_RESTART_COUNT", 0, kMaxWorld, 0);
  world.run_id = read.get("TORCHELASTIC_RUN_ID").value_or("");
  world.agent_serves_store = read.get("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  if (world.size > 1) {
    world.master_addr = read.get("MASTER_ADDR").value_or("");
    if (world.master_addr.empty()) throw ConfigError("MASTER_ADDR is not set although WORLD_SIZE is above 1");
    world.master_port = read.integer("MASTER_PORT", 1, 65535, std::nullopt);
  }
  const bool ours = read.get("LOCKSTEP_LAUNCHER").has_value();
  world.source = ours ? "lockstep run" : world.run_id.empty() ? "RANK and WORLD_SIZE" : "torchrun";
  return world;
}

}  // namespace lockstep
