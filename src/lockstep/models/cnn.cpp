#include "lockstep/models/cnn.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/models/conv_relu_pool.h"

namespace lockstep::models {
namespace {

torch::nn::Conv2dOptions convolution_options(const ModelShape& shape) {
  if (shape.height < 3 || shape.width < 3) {
    throw ConfigError(text("model cnn: images must be at least 3 x 3, these are ", shape.height, " x ", shape.width));
  }
  return {shape.channels, Cnn::kFilters, 3};
}

}  // namespace

Cnn::Cnn(const ModelShape& shape, const ModelOptions& options)
    : fuse_(options.fuse),
      convolution_(register_module("0", torch::nn::Conv2d(convolution_options(shape)))),
      linear_(register_module("4", torch::nn::Linear(kFilters, shape.classes))) {}

at::Tensor Cnn::forward(at::Tensor input) {
  const at::Tensor pooled = fuse_ ? conv_relu_pool(input, convolution_->weight, convolution_->bias)
                                  : conv_relu_pool_unfused(input, convolution_->weight, convolution_->bias);
  return at::linear(pooled, linear_->weight, linear_->bias);
}

}  // namespace lockstep::models
