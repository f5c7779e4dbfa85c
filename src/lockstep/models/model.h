#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace lockstep::models {

/// What an image model sees and answers: images [N, channels, height, width], logits [N, classes].
struct ModelShape {
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;
};

/// What a token model sees and answers, and its size: int64 tokens [N, T] with T <= positions, logits
/// [N, T, vocabulary]. The defaults are GPT-2's with 124M parameters.
struct TokenShape {
  std::int64_t vocabulary = 50257;
  std::int64_t positions = 1024;
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t width = 768;  ///< a multiple of `heads`
};

/// A model takes no notice of an option that means nothing to it.
struct ModelOptions {
  bool fuse = true;            ///< use Lockstep's kernels where they apply; false: ATen's operations alone
  bool channels_last = false;  ///< resnets: weights and images as NHWC, which suits tensor cores
  bool zero_gamma = false;     ///< resnets: the last BatchNorm of each block starts from 0 (Goyal et al. 2017)
  bool recompute = false;      ///< resnets a block, gpt2 a layer: activations are computed anew in backward
};

/// Names and tensors in Python's order.
using StateDict = std::vector<std::pair<std::string, at::Tensor>>;

/// A built-in model. Parameter names, shapes and, for the same torch::manual_seed, initial values are those of the
/// Python module it stands for. Clones (Module::clone) share nothing.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(at::Tensor input) = 0;

  /// What Python's `state_dict()` of that module holds: parameters and buffers, a tied weight under each of its names.
  /// The tensors are the model's own.
  virtual StateDict state_dict() const;

  /// Brings a state dict in any usual form of this model to the names of named_parameters() and named_buffers(): other
  /// spellings are renamed, tied weights held once, what is no state dropped. Entries that it does not know stay as
  /// they are. Throws DataError when tied weights differ.
  virtual StateDict own_names(StateDict state) const { return state; }

  /// As Python's: only floating-point tensors change their type. torch::nn::Module's own turns BatchNorm's count of
  /// batches into a fraction as well.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  using torch::nn::Module::to;
};

enum class InputKind {
  kImages,  ///< made by make_model()
  kTokens,  ///< made by make_token_model()
};

/// The names of the built-in models.
std::vector<std::string> model_names();

/// What the model of that name reads. Throws ConfigError on an unknown name, which lists the known ones.
InputKind input_kind(const std::string& name);

/// Makes an image model with fresh initial values, drawn from torch's default CPU generator. A name that ends in ".pt"
/// is the path of a TorchScript file (torchscript.h), which has its own shape and values. Throws ConfigError on an
/// unknown name, on a model that reads tokens and on a shape that the model cannot take.
std::shared_ptr<Model> make_model(const std::string& name, const ModelShape& shape, const ModelOptions& options = {});

/// The same for models that read tokens.
std::shared_ptr<Model> make_token_model(const std::string& name, const TokenShape& shape,
                                        const ModelOptions& options = {});

}  // namespace lockstep::models
