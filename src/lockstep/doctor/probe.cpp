#include "lockstep/doctor/probe.h"

#include <regex>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::doctor {
namespace {

/// "13.0" out of "13.0", or of the lines in which CUDA describes itself.
std::string version_in(const std::string& words) {
  std::smatch found;
  static const std::regex kVersion(R"((\d+\.\d+))");
  return std::regex_search(words, found, kVersion) ? found[1].str() : std::string();
}

/// The major version of the CUDA runtime in the process: hooks that find no GPU do not tell theirs.
std::string runtime_version(const Probe& probe) {
  constexpr std::string_view kRuntime = "libcudart.so.";
  for (const std::string& object : probe.loaded_objects) {
    const std::string name = std::filesystem::path(object).filename();
    if (name.starts_with(kRuntime)) return name.substr(kRuntime.size());
  }
  return "";
}

CudaState classify(const Probe& probe, bool is_available) {
  if (is_available) return CudaState::kUsable;
  if (!probe.loaded("libtorch_cuda.so").empty()) return CudaState::kNoUsableGpu;
  return probe.cuda_library.empty() ? CudaState::kCpuOnlyLibTorch : CudaState::kLibraryNotLoaded;
}

Probe failed(std::string failure, std::string hint) {
  Probe probe;
  probe.failure = std::move(failure);
  probe.hint = std::move(hint);
  return probe;
}

/// The lines that matter of a program that died: what the loader or LibTorch wrote first.
std::string last_words(const CommandOutput& output) {
  const std::string_view words = trim(output.err);
  return words.empty() ? "it wrote nothing" : split(words, '\n').front();
}

}  // namespace

std::string Probe::loaded(std::string_view file_name) const {
  for (const std::string& object : loaded_objects) {
    if (std::filesystem::path(object).filename() == file_name) return object;
  }
  return "";
}

Probe parse_probe(const std::string& json) {
  try {
    const auto answer = nlohmann::json::parse(json);
    Probe probe;
    probe.torch = answer.at("torch").get<std::string>();
    probe.threads = answer.value("threads", 0);
    probe.cpu_capability = answer.value("cpu_capability", "");
    if (answer.contains("cuda_version") && answer["cuda_version"].is_string()) {
      probe.cuda_version = version_in(answer["cuda_version"].get<std::string>());
    }
    probe.cuda_error = answer.value("cuda_error", "");
    probe.cuda_library = answer.at("cuda_library").get<std::string>();
    probe.loaded_objects = answer.at("loaded_objects").get<std::vector<std::string>>();
    if (probe.cuda_version.empty()) probe.cuda_version = runtime_version(probe);
    probe.cuda = classify(probe, answer.at("cuda_available").get<bool>());
    for (const auto& device : answer.value("devices", nlohmann::json::array())) {
      probe.devices.push_back({device.at("index").get<int>(), device.value("kernel", "ok")});
    }
    return probe;
  } catch (const nlohmann::json::exception& error) {
    return failed(text("its answer is not understood: ", error.what()),
                  "lockstep and lockstep-worker must come from the same build");
  }
}

Probe run_probe(const std::filesystem::path& worker, const CommandRunner& run, std::chrono::milliseconds timeout) {
  std::error_code ignored;
  if (!std::filesystem::exists(worker, ignored)) {
    return failed(text(worker.string(), " does not exist"),
                  "build it: cmake --build build/release --target lockstep-worker");
  }
  const CommandOutput output = run({worker.string(), "probe"}, timeout);
  if (!output.started) return failed(text(worker.string(), " cannot be executed"), "look at its permissions");
  if (output.timed_out) {
    return failed(text("no answer within ", format_duration(timeout), ": ", last_words(output)),
                  "a GPU driver that hangs does this; look at dmesg and nvidia-smi");
  }
  if (output.signal != 0) {
    return failed(text("LibTorch was killed by signal ", output.signal, " while loading: ", last_words(output)),
                  output.signal == 4 ? "this CPU lacks instructions that this LibTorch was built with" : "");
  }
  if (output.exit_code != 0) {
    const bool is_loader = output.err.find("error while loading shared libraries") != std::string::npos;
    return failed(text(last_words(output)), is_loader ? "set LIBTORCH to the folder that holds lib/libtorch_cpu.so, or "
                                                        "put LibTorch back where it was when Lockstep was built "
                                                        "(scripts/setup.sh)"
                                                      : text("run it yourself: ", worker.string(), " probe"));
  }
  return parse_probe(output.out);
}

}  // namespace lockstep::doctor
