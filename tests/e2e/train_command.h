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

}  // namespace lockstep::e2e
