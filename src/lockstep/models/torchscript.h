#pragma once

#include <filesystem>
#include <string>

#include <torch/csrc/jit/api/module.h>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// A TorchScript file, written by `torch.jit.script(model).save(path)` or `trace`, as a model: its parameters and
/// buffers appear under their names and are the very tensors that the script reads, so that optimizers, arenas, `to()`
/// and checkpoints see them. forward gives what the script's forward gives for one tensor. train() and eval() reach
/// every submodule; a traced file keeps the mode in which it was traced, whatever they say. The values are the file's:
/// no seed changes them.
///
/// Before anything of it is used, every record of the file is checked against its CRC, which LibTorch itself does not
/// do. Loading runs nothing but what TorchScript runs by its nature: the file's code is compiled for TorchScript's
/// interpreter and its `__setstate__` methods and, in training, `forward` are executed there. That interpreter knows
/// tensor operations, not Python; nevertheless a file is a program, so take one only from someone you trust.
class TorchScriptModel : public Model {
 public:
  /// Loads to the CPU. Throws DataError that names the path when the file is missing, damaged, no TorchScript (a state
  /// dict saved by torch.save, say), or holds no parameters to train (a frozen one).
  explicit TorchScriptModel(const std::filesystem::path& path);

  /// Throws ConfigError when the script gives something else than one tensor.
  at::Tensor forward(at::Tensor input) override;
  void train(bool on = true) override;

 private:
  const std::string path_;
  torch::jit::Module script_;
};

}  // namespace lockstep::models
