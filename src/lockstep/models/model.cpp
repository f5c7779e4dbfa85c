#include "lockstep/models/model.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/models/cnn.h"
#include "lockstep/models/gpt2.h"
#include "lockstep/models/mlp.h"
#include "lockstep/models/resnet.h"
#include "lockstep/models/torchscript.h"

namespace lockstep::models {

StateDict Model::state_dict() const {
  StateDict state;
  for (const auto& entry : named_parameters()) state.emplace_back(entry.key(), entry.value());
  for (const auto& entry : named_buffers()) state.emplace_back(entry.key(), entry.value());
  return state;
}

void Model::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  Module::to(device, non_blocking);
  to(dtype, non_blocking);
}

void Model::to(torch::Dtype dtype, bool non_blocking) {
  const auto convert = [&](at::Tensor& tensor) {
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype, non_blocking));
  };
  for (auto& parameter : parameters()) convert(parameter);
  for (auto& buffer : buffers()) convert(buffer);
}

std::vector<std::string> model_names() {
  return {"cnn", "mlp", "resnet18", "resnet50", "gpt2"};
}

InputKind input_kind(const std::string& name) {
  if (name == "gpt2") return InputKind::kTokens;
  const auto names = model_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return InputKind::kImages;
  const std::string near = nearest(name, names);
  throw ConfigError(text("unknown model '", name, "'; known models: ", join(names, ", ")),
                    near.empty() ? std::string("a TorchScript file is given by a path that ends in .pt")
                                 : text("did you mean '", near, "'?"));
}

std::shared_ptr<Model> make_model(const std::string& name, const ModelShape& shape, const ModelOptions& options) {
  if (name.ends_with(".pt")) return std::make_shared<TorchScriptModel>(name);
  if (input_kind(name) != InputKind::kImages) {
    throw ConfigError(text("model ", name, ": reads tokens, not images"), "give it tokens: --data tokens:FILE");
  }
  if (shape.channels < 1 || shape.height < 1 || shape.width < 1 || shape.classes < 1) {
    throw ConfigError(text("model ", name, ": channels ", shape.channels, ", height ", shape.height, ", width ",
                           shape.width, " and classes ", shape.classes, " must all be at least 1"));
  }
  if (name == "cnn") return std::make_shared<Cnn>(shape, options);
  if (name == "mlp") return std::make_shared<Mlp>(shape, options);
  return std::make_shared<ResNet>(name == "resnet50" ? ResNet::Depth::k50 : ResNet::Depth::k18, shape, options);
}

std::shared_ptr<Model> make_token_model(const std::string& name, const TokenShape& shape, const ModelOptions& options) {
  if (input_kind(name) != InputKind::kTokens) {
    throw ConfigError(text("model ", name, ": reads images, not tokens"), "the model for tokens is gpt2");
  }
  return std::make_shared<Gpt2>(shape, options);
}

}  // namespace lockstep::models
