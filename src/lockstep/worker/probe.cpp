#include <iostream>

#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/text.h"
#include "lockstep/host/loaded_objects.h"
#include "lockstep/train/device.h"
#include "lockstep/worker/commands.h"

namespace lockstep::worker {

int probe() {
  nlohmann::json report{{"schema", "lockstep.probe/1"},
                        {"torch", TORCH_VERSION},
                        {"threads", at::get_num_threads()},
                        {"cpu_capability", at::get_cpu_capability()}};
  const std::string reason = train::load_cuda();
  report["cuda_library"] = train::cuda_library().string();
  report["loaded_objects"] = nlohmann::json::array();
  for (const auto& object : host::loaded_objects()) report["loaded_objects"].push_back(object.string());
  report["cuda_available"] = reason.empty();
  report["cuda_error"] = reason;
  report["devices"] = nlohmann::json::array();
  if (at::globalContext().hasCUDA()) {
    const auto& hooks = at::detail::getCUDAHooks();
    report["cuda_version"] = hooks.versionRuntimeCuDNN() >= 0 ? hooks.showConfig() : "";
    report["cudnn"] = hooks.versionRuntimeCuDNN();
  }
  if (reason.empty()) {
    // A kernel has to run, not only to load: "invalid device function" shows here.
    for (int index = 0; index < static_cast<int>(torch::cuda::device_count()); ++index) {
      nlohmann::json device{{"index", index}};
      try {
        const auto sum =
            at::ones({1024}, at::TensorOptions().device(at::kCUDA, static_cast<c10::DeviceIndex>(index))).sum();
        device["kernel"] = sum.item<float>() == 1024.0F ? "ok" : "wrong result";
      } catch (const std::exception& error) {
        device["kernel"] = split(error.what(), '\n').front();
      }
      report["devices"].push_back(std::move(device));
    }
  }
  std::cout << report.dump() << std::endl;
  return 0;
}

int why_cpu_only() {
  std::cout << train::why_cpu_only() << std::flush;
  return 0;
}

}  // namespace lockstep::worker
