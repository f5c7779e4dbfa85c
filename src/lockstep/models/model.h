#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace lockstep::models {

/// What a model sees and answers: images [N, channels, height, width], logits [N, classes].
struct ModelShape {
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;
};

struct ModelOptions {
  bool fuse = true;  ///< use Lockstep's kernels where they apply; false: ATen's operations alone
};

/// A built-in model. Parameter names, shapes and, for the same torch::manual_seed, initial values are those of the
/// Python module it stands for. Clones (Module::clone) share nothing.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(at::Tensor input) = 0;
};

/// The names that make_model accepts.
std::vector<std::string> model_names();

/// Makes a model with fresh initial values, drawn from torch's default CPU generator. Throws ConfigError on an unknown
/// name, which lists the known ones, and on a shape that the model cannot take.
std::shared_ptr<Model> make_model(const std::string& name, const ModelShape& shape, const ModelOptions& options = {});

}  // namespace lockstep::models
