#include "lockstep/train/weights.h"

#include <algorithm>
#include <map>
#include <span>
#include <unordered_set>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/formats/hash.h"
#include "lockstep/formats/safetensors.h"

namespace lockstep::train {

namespace {

constexpr std::pair<std::string_view, at::ScalarType> kTypes[] = {
    {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"I64", at::kLong},
    {"I32", at::kInt},    {"I16", at::kShort}, {"I8", at::kChar},  {"U8", at::kByte},       {"BOOL", at::kBool}};

std::string type_name(const optim::NamedTensor& entry) {
  for (const auto& [name, type] : kTypes) {
    if (type == entry.tensor.scalar_type()) return std::string(name);
  }
  throw ConfigError(text("tensor ", entry.name, " has type ", c10::toString(entry.tensor.scalar_type()),
                         ", which safetensors cannot hold"));
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).contiguous();
}

std::string shape_text(at::IntArrayRef shape) {
  std::vector<std::string> extents;
  for (const auto extent : shape) extents.push_back(text(extent));
  return text("[", join(extents, ", "), "]");
}

}  // namespace

std::vector<optim::NamedTensor> state_tensors(const torch::nn::Module& model) {
  std::vector<optim::NamedTensor> tensors;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const auto& entries) {
    for (const auto& entry : entries) {
      if (seen.insert(entry.value().unsafeGetTensorImpl()).second) tensors.push_back({entry.key(), entry.value()});
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return tensors;
}

std::uint64_t save_tensors(const std::filesystem::path& path, const std::vector<optim::NamedTensor>& tensors) {
  std::vector<at::Tensor> kept;
  std::vector<formats::TensorView> views;
  for (const auto& entry : tensors) {
    kept.push_back(on_host(entry.tensor));
    views.push_back({entry.name, type_name(entry), kept.back().sizes().vec(), bytes_of(kept.back())});
  }
  return formats::write_safetensors(path, views).size_bytes;
}

std::vector<optim::NamedTensor> load_tensors(const std::filesystem::path& path) {
  const formats::SafetensorsFile file(path);
  std::vector<optim::NamedTensor> tensors;
  for (const auto& view : file.tensors()) {
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const auto& entry) { return entry.first == view.dtype; });
    LOCKSTEP_CHECK(type != std::end(kTypes));
    auto tensor = at::empty(view.shape, at::TensorOptions(type->second));
    std::copy(view.bytes.begin(), view.bytes.end(), static_cast<std::byte*>(tensor.mutable_data_ptr()));
    tensors.push_back({view.name, std::move(tensor)});
  }
  return tensors;
}

void copy_by_name(const std::vector<optim::NamedTensor>& target, const std::vector<optim::NamedTensor>& source,
                  std::string_view origin) {
  std::map<std::string_view, const at::Tensor*> by_name;
  for (const auto& entry : source) by_name.emplace(entry.name, &entry.tensor);
  for (const auto& entry : target) {
    const auto found = by_name.find(entry.name);
    if (found == by_name.end()) {
      throw CheckpointError(text(origin, ": has no tensor ", entry.name, ": it belongs to another model"));
    }
    if (found->second->sizes() != entry.tensor.sizes()) {
      throw CheckpointError(text(origin, ": tensor ", entry.name, " is ", shape_text(found->second->sizes()),
                                 ", expected ", shape_text(entry.tensor.sizes())));
    }
    by_name.erase(found);
  }
  if (!by_name.empty()) {
    throw CheckpointError(text(origin, ": holds tensor ", by_name.begin()->first,
                               ", which this model does not have: it belongs to another model"));
  }
  at::NoGradGuard no_grad;
  for (const auto& entry : source) by_name.emplace(entry.name, &entry.tensor);
  for (const auto& entry : target) entry.tensor.detach().copy_(*by_name.at(entry.name));
}

void load_weights(const models::Model& model, const std::filesystem::path& path) {
  models::StateDict state;
  for (auto& entry : load_tensors(path)) state.emplace_back(std::move(entry.name), std::move(entry.tensor));
  std::vector<optim::NamedTensor> tensors;
  try {
    for (auto& [name, tensor] : model.own_names(std::move(state))) tensors.push_back({name, tensor});
  } catch (const DataError& error) {
    throw DataError(text(path.string(), ": ", error.what()));
  }
  copy_by_name(state_tensors(model), tensors, path.string());
}

std::string tensors_sha256(const std::vector<optim::NamedTensor>& tensors) {
  formats::Sha256 hash;
  for (const auto& entry : tensors) hash.update(bytes_of(on_host(entry.tensor)));
  return hash.finish_hex();
}

}  // namespace lockstep::train
