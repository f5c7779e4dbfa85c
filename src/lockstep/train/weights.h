#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include "lockstep/models/model.h"
#include "lockstep/optim/arena.h"

namespace lockstep::train {

/// Parameters and buffers of a model in name order; a tied weight once, under its first name. The tensors are the
/// model's own.
std::vector<optim::NamedTensor> state_tensors(const torch::nn::Module& model);

/// Writes tensors (any device) as safetensors, atomically. Returns the file's size in bytes. Throws SystemError.
std::uint64_t save_tensors(const std::filesystem::path& path, const std::vector<optim::NamedTensor>& tensors);

/// Reads a safetensors file; tensors own their memory. Throws DataError naming path and offset.
std::vector<optim::NamedTensor> load_tensors(const std::filesystem::path& path);

/// Copies `source` into `target` by name, converting types. Names and shapes must be the same on both sides; throws
/// CheckpointError that names `origin` and the first missing, unexpected or differing tensor, with nothing changed.
void copy_by_name(const std::vector<optim::NamedTensor>& target, const std::vector<optim::NamedTensor>& source,
                  std::string_view origin);

/// Fills a built-in model from a safetensors file that holds its state dict in any usual form (Model::own_names).
/// Throws DataError and CheckpointError naming the path, with nothing changed.
void load_weights(const models::Model& model, const std::filesystem::path& path);

/// SHA-256 over the raw row-major bytes of all tensors, in the order given.
std::string tensors_sha256(const std::vector<optim::NamedTensor>& tensors);

}  // namespace lockstep::train
