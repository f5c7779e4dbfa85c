#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

Result check_compiler(const Machine& machine) {
  constexpr std::chrono::seconds kTimeout(5);
  std::vector<std::string> found;
  bool has_compiler = false;
  for (const char* program : {"g++", "clang++", "cmake", "ninja", "ccache"}) {
    const CommandOutput output = machine.run({program, "--version"}, kTimeout);
    if (!output.ok()) continue;
    // ninja prints the bare number.
    const std::string line(trim(output.first_line()));
    found.push_back(line.find(' ') == std::string::npos ? text(program, ' ', line) : line);
    has_compiler = has_compiler || std::string_view(program).ends_with("++");
  }
  const CommandOutput nvcc = machine.run({"nvcc", "--version"}, kTimeout);
  for (const std::string& line : split(nvcc.ok() ? nvcc.out : "", '\n')) {
    if (line.find("release") != std::string::npos) found.push_back(text("nvcc: ", trim(line)));
  }
  if (has_compiler) return {"", Status::kInfo, join(found, "; "), "", ""};
  return {"", Status::kInfo, text("no C++ compiler", found.empty() ? "" : "; ", join(found, "; ")),
          "only needed to build programs of your own", "apt-get install g++ cmake ninja-build, or scripts/setup.sh"};
}

}  // namespace lockstep::doctor
