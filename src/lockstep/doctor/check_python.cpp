#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {

Result check_python(const Machine& machine) {
  std::error_code ignored;
  if (!std::filesystem::exists(machine.python, ignored)) {
    return {"", Status::kSkip, text("there is no ", machine.python.string()),
            "Python is only needed by the parity tests and the benchmarks", ""};
  }
  // The installed metadata, not `import torch`: that takes seconds.
  const CommandOutput output =
      machine.run({machine.python.string(), "-c",
                   "import sys, importlib.metadata as m; print('Python', sys.version.split()[0], 'with torch', "
                   "m.version('torch'), 'and numpy', m.version('numpy'))"},
                  std::chrono::seconds(10));
  if (output.ok()) return {"", Status::kOk, output.first_line(), "", ""};
  return {"", Status::kWarn, text(machine.python.string(), " has no torch and numpy"), std::string(trim(output.err)),
          "run scripts/setup.sh again: it repairs .venv"};
}

}  // namespace lockstep::doctor
