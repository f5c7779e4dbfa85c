#include "lockstep/config/devices.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::config {

namespace {

std::string gpus(int count) {
  return text(count, count == 1 ? " GPU" : " GPUs");
}

// "2 GPUs are visible (CUDA_VISIBLE_DEVICES=0,1 of 8 in the machine)"
std::string visible_text(const Machine& machine) {
  std::string words = text(gpus(machine.gpus_visible), machine.gpus_visible == 1 ? " is" : " are", " visible");
  if (!machine.gpu_limit.empty())
    words += text(" (", machine.gpu_limit, ", of ", machine.gpus_present, " in the machine)");
  return words;
}

[[noreturn]] void fail_without_gpu(const std::string& flag, const Machine& machine) {
  const std::string limit = machine.gpu_limit.empty() ? "" : text(" (", machine.gpu_limit, ")");
  throw ConfigError(text(flag, ": there is no usable GPU: ", machine.why_no_gpu, limit),
                    "lockstep doctor looks for the cause; --device cpu trains on the CPU");
}

class Chooser {
 public:
  Chooser(const FlagValues& values, const Machine& machine, const DeviceDefaults& defaults)
      : values_(values), machine_(machine), defaults_(defaults), device_(values.text("device")) {
    for (const auto& word : values.list("devices")) {
      long long index = 0;
      LOCKSTEP_CHECK(parse_number(word, index));
      listed_.push_back(static_cast<int>(index));
    }
    if (values.given("nproc") && values.text("nproc") != "auto") nproc_ = static_cast<int>(values.integer("nproc"));
  }

  DeviceChoice choose() const {
    if (!listed_.empty()) check_listed();
    if (device_ == "cuda" || !listed_.empty()) return on_cuda();
    if (device_ == "cpu") return on_cpu("");
    if (machine_.gpus_visible == 0) return on_cpu(text("no usable GPU: ", machine_.why_no_gpu));
    if (nproc_.value_or(1) > machine_.gpus_visible) {
      DeviceChoice choice = on_cpu(text("--nproc ", *nproc_, " is more than the GPUs: ", visible_text(machine_)));
      choice.notes.push_back(text("--nproc ", *nproc_, " trains on the CPU, since ", visible_text(machine_),
                                  " and every process needs one of its own"));
      return choice;
    }
    return on_cuda();
  }

 private:
  void check_listed() const {
    if (device_ == "cpu") throw ConfigError("--devices chooses GPUs, but --device is cpu");
    if (machine_.gpus_visible == 0) fail_without_gpu(text("--devices ", values_.text("devices")), machine_);
    for (const int index : listed_) {
      if (index < machine_.gpus_visible) continue;
      throw ConfigError(text("--devices ", values_.text("devices"), ": there is no GPU ", index, ": ",
                             visible_text(machine_), ", counted from 0"));
    }
    if (nproc_ && *nproc_ != static_cast<int>(listed_.size())) {
      throw ConfigError(text("--devices names ", gpus(static_cast<int>(listed_.size())), " but --nproc is ", *nproc_));
    }
  }

  DeviceChoice on_cpu(const std::string& reason) const {
    DeviceChoice choice;
    choice.device = "cpu";
    choice.reason = reason;
    const bool all = values_.given("nproc") && values_.text("nproc") == "auto";
    if (nproc_) {
      choice.nproc = *nproc_;
    } else if (defaults_.one_device_only) {
      choice.nproc = 1;
    } else {
      choice.nproc = all ? machine_.usable_cpus : defaults_.cpu_default;
    }
    return choice;
  }

  DeviceChoice on_cuda() const {
    if (machine_.gpus_visible == 0) fail_without_gpu("--device cuda", machine_);
    if (nproc_.value_or(1) > machine_.gpus_visible) {
      throw ConfigError(text("--nproc ", *nproc_, " with --device cuda, but only ", visible_text(machine_)),
                        "each process needs a GPU of its own; --device cpu takes any number of processes");
    }
    DeviceChoice choice;
    choice.device = "cuda";
    const bool all = !defaults_.one_device_only && (values_.given("nproc") || defaults_.cpu_default > 1);
    const int by_default = all ? machine_.gpus_visible : 1;
    choice.nproc = nproc_.value_or(listed_.empty() ? by_default : static_cast<int>(listed_.size()));
    if (device_ == "auto") choice.reason = text(visible_text(machine_));
    choice.devices = listed_;
    for (int index = 0; listed_.empty() && index < choice.nproc; ++index) choice.devices.push_back(index);
    return choice;
  }

  const FlagValues& values_;
  const Machine& machine_;
  const DeviceDefaults& defaults_;
  std::string device_;
  std::vector<int> listed_;
  std::optional<int> nproc_;
};

}  // namespace

DeviceChoice choose_devices(const FlagValues& values, const Machine& machine, const DeviceDefaults& defaults) {
  return Chooser(values, machine, defaults).choose();
}

}  // namespace lockstep::config
