#include "lockstep/models/torchscript.h"

#include <algorithm>
#include <exception>
#include <memory>

#include <torch/csrc/jit/serialization/import.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/zip_check.h"

namespace lockstep::models {
namespace {

constexpr const char* kHowToSave = "write one in Python: torch.jit.script(model).save(path)";

torch::jit::Module load_script(const std::filesystem::path& path) {
  formats::check_zip(path);
  try {
    return torch::jit::load(path.string(), at::kCPU);
  } catch (const std::exception& error) {
    // LibTorch's texts go on with a trace of its own calls.
    const std::string reason = split(error.what(), '\n').front();
    throw DataError(text(path.string(), ": is not a TorchScript file: ", reason), kHowToSave);
  }
}

/// Gives `target` the script's tensors and submodules. torch::nn takes no name with a dot, so the tree is rebuilt.
void mirror(const torch::jit::Module& script, torch::nn::Module& target) {
  for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
    target.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  }
  for (const auto& buffer : script.named_buffers(/*recurse=*/false)) target.register_buffer(buffer.name, buffer.value);
  for (const auto& child : script.named_children()) {
    auto module = target.register_module(child.name, std::make_shared<torch::nn::Module>("ScriptModule"));
    mirror(child.value, *module);
  }
}

}  // namespace

TorchScriptModel::TorchScriptModel(const std::filesystem::path& path)
    : path_(path.string()), script_(load_script(path)) {
  if (!script_.find_method("forward")) {
    throw DataError(text(path_, ": holds tensors but no program to run; torch::save and torch.save write such files"),
                    kHowToSave);
  }
  mirror(script_, *this);
  const auto all = parameters();
  if (std::none_of(all.begin(), all.end(), [](const at::Tensor& tensor) { return tensor.requires_grad(); })) {
    throw DataError(text(path_, ": holds no parameters that can be trained; a frozen file has them as constants"),
                    kHowToSave);
  }
}

at::Tensor TorchScriptModel::forward(at::Tensor input) {
  const auto output = script_.forward({std::move(input)});
  if (!output.isTensor()) {
    throw ConfigError(text(path_, ": its forward gives ", output.tagKind(), ", expected one Tensor"));
  }
  return output.toTensor();
}

void TorchScriptModel::train(bool on) {
  Model::train(on);
  script_.train(on);
}

}  // namespace lockstep::models
