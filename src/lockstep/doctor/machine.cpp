#include "lockstep/doctor/machine.h"

#include <utility>

namespace lockstep::doctor {

const host::Gpu& Machine::visible_gpu(int cuda_index) const {
  const int position = visible.gpus.at(static_cast<std::size_t>(cuda_index));
  return gpus.gpus.at(static_cast<std::size_t>(position));
}

Machine inspect_machine(Probe probe, const std::filesystem::path& run_folder) {
  Machine machine;
  machine.environment = process_environment();
  machine.run_folder = run_folder;
  machine.python = std::filesystem::current_path() / ".venv/bin/python3";
  machine.gpus = host::find_gpus(host::GpuSources::of_system(machine.environment));
  machine.visible = host::visible_devices(machine.gpus, machine.environment);
  machine.run = run_command;
  machine.probe = std::move(probe);
  return machine;
}

}  // namespace lockstep::doctor
