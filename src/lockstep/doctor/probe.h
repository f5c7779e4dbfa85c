#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/doctor/run_command.h"

namespace lockstep::doctor {

/// How far LibTorch gets with CUDA: three states that users mistake for each other.
enum class CudaState {
  kUsable,
  kCpuOnlyLibTorch,   ///< LibTorch was built without CUDA
  kLibraryNotLoaded,  ///< LibTorch has a CUDA library, but it does not load into the program
  kNoUsableGpu,       ///< the library is loaded and finds no GPU that it can use
};

struct ProbedDevice {
  int index = 0;
  std::string kernel;  ///< "ok" when a kernel ran and gave the right answer, else the message
};

/// What LibTorch says about itself, asked in a process of its own (`lockstep-worker probe`): loading it may fail, hang
/// or crash without touching the doctor.
struct Probe {
  std::string failure;  ///< why there is no answer; empty when there is one, and only then the rest counts
  std::string hint;
  std::string torch;         ///< "2.11.0"
  std::string cuda_version;  ///< that LibTorch was built with, "13.0" or "13"; empty when unknown or none
  std::string cpu_capability;
  int threads = 0;
  std::vector<std::string> loaded_objects;  ///< of the worker's process, after it had loaded what CUDA needs
  std::string cuda_library;                 ///< LibTorch's libtorch_cuda.so, loaded or not; empty when it has none
  CudaState cuda = CudaState::kNoUsableGpu;
  std::string cuda_error;
  std::vector<ProbedDevice> devices;

  bool answered() const noexcept { return failure.empty(); }
  /// The path from which a library was loaded, or "".
  std::string loaded(std::string_view file_name) const;
};

/// Reads the worker's JSON. The state of CUDA comes from the objects that were loaded, not from messages. Unknown keys
/// are ignored; an answer that is none becomes a failure.
Probe parse_probe(const std::string& json);

/// Runs `worker` probe and reads its answer.
Probe run_probe(const std::filesystem::path& worker, const CommandRunner& run,
                std::chrono::milliseconds timeout = std::chrono::seconds(20));

}  // namespace lockstep::doctor
