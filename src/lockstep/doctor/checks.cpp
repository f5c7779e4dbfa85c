#include "lockstep/doctor/checks.h"

#include <algorithm>
#include <exception>

#include "lockstep/base/text.h"

namespace lockstep::doctor {
namespace {

struct Check {
  const char* name;
  Result (*run)(const Machine&);
};

constexpr Check kChecks[] = {
    {"system", check_system},
    {"cpu", check_cpu},
    {"memory", check_memory},
    {"shared-memory", check_shared_memory},
    {"open-files", check_open_files},
    {"processes", check_processes},
    {"loopback", check_loopback},
    {"temporary-folder", check_temporary_folder},
    {"environment", check_environment},
    {"gpus", check_gpus},
    {"visible-devices", check_visible_devices},
    {"gpu-memory", check_gpu_memory},
    {"driver", check_driver},
    {"libtorch", check_libtorch},
    {"cuda", check_cuda},
    {"kernels", check_kernels},
    {"bf16", check_bf16},
    {"disk", check_disk},
    {"fashion-mnist", check_fashion_mnist},
    {"compiler", check_compiler},
    {"python", check_python},
};

}  // namespace

std::vector<Result> run_checks(const Machine& machine) {
  std::vector<Result> results;
  for (const Check& check : kChecks) {
    try {
      results.push_back(check.run(machine));
    } catch (const std::exception& error) {
      results.push_back({"", Status::kFail, text("this check could not be made: ", error.what()), "", ""});
    }
    results.back().name = check.name;
  }
  return results;
}

Result check_required_gpus(const Machine& machine, int count) {
  int usable = 0;
  if (machine.probe.answered() && machine.probe.cuda == CudaState::kUsable) {
    usable = static_cast<int>(std::count_if(machine.probe.devices.begin(), machine.probe.devices.end(),
                                            [](const ProbedDevice& device) { return device.kernel == "ok"; }));
  }
  Result result{"require", Status::kOk, text(usable, " usable GPU(s), ", count, " required"), "", ""};
  if (usable < count) {
    result.status = Status::kFail;
    result.why = text("the host has ", machine.gpus.gpus.size(), " GPU(s), ", machine.num_visible_gpus(),
                      " of them visible, LibTorch can use ", usable);
    result.hint = "the findings above say where they get lost";
  }
  return result;
}

}  // namespace lockstep::doctor
