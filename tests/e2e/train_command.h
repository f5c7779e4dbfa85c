#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "e2e/launcher_command.h"

namespace lockstep::e2e {

using Words = std::vector<std::string>;

inline Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

/// What is left of a command: exit code, and what it printed.
struct Finished {
  int exit_code = 0;
  std::string out;
  std::string err;
  nlohmann::json document() const { return nlohmann::json::parse(out); }
};

/// The command of this build with these words, to its end.
inline Finished run(const Words& words) {
  Command command(words);
  const int exit_code = command.wait();
  return {exit_code, command.out(), command.err()};
}

/// A training run that would take days, on the CPU: for tests that end it.
inline Words endless_training(int nproc, const fs::path& run_dir) {
  return {"train",    "--model",      "mlp",     "--data",    "synthetic:1x28x28:4096",
          "--device", "cpu",          "--nproc", text(nproc), "--epochs",
          "100000",   "--eval-every", "0",       "--run-dir", run_dir.string()};
}

/// The last step that rank 0 has logged; 0 when there is none.
inline std::int64_t last_step(const fs::path& run_dir) {
  std::int64_t step = 0;
  const auto events = run_dir / "events.jsonl";
  if (!fs::exists(events)) return step;
  for (const auto& line : split(read_file(events), '\n')) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_object() && event["event"] == "step") step = event["step"];
  }
  return step;
}

/// Whether it makes its first step within half a minute.
inline bool is_training(const fs::path& run_dir) {
  return Command::eventually([&] { return last_step(run_dir) > 0; }, 30000);
}

}  // namespace lockstep::e2e
