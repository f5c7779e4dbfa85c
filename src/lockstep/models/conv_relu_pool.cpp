#include "lockstep/models/conv_relu_pool.h"

#include <torch/torch.h>

#include <ATen/Parallel.h>

#include "lockstep/kernels/conv_relu_pool.h"
#include "lockstep/models/fused.h"

namespace lockstep::models {
namespace {

using kernels::ConvReluPoolShape;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Images that one thread takes at a time. Fixed, since the order in which gradients are summed follows from it.
constexpr std::int64_t kBlockImages = 16;

ConvReluPoolShape shape_of(const at::Tensor& x, const at::Tensor& weight) {
  return {
      .images = x.size(0), .channels = x.size(1), .height = x.size(2), .width = x.size(3), .filters = weight.size(0)};
}

/// body(block, first image, the block's shape) for every block, over at's threads.
template <typename Body>
void for_each_block(const ConvReluPoolShape& shape, const Body& body) {
  const std::int64_t blocks = (shape.images + kBlockImages - 1) / kBlockImages;
  at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * kBlockImages;
      ConvReluPoolShape part = shape;
      part.images = std::min(kBlockImages, shape.images - first);
      body(block, first, part);
    }
  });
}

/// `active` may be undefined.
at::Tensor forward_kernel(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& active) {
  const ConvReluPoolShape shape = shape_of(x, weight);
  at::Tensor pooled = at::empty({shape.images, shape.filters}, x.options());
  const std::int64_t image_size = shape.channels * shape.height * shape.width;
  const std::int64_t active_size = shape.groups() * shape.padded_filters();
  std::uint8_t* bits = active.defined() ? active.data_ptr<std::uint8_t>() : nullptr;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "conv_relu_pool", [&] {
    const auto* in = x.const_data_ptr<scalar_t>();
    const auto* w = weight.const_data_ptr<scalar_t>();
    const auto* b = bias.const_data_ptr<scalar_t>();
    auto* out = pooled.data_ptr<scalar_t>();
    for_each_block(shape, [&](std::int64_t, std::int64_t first, const ConvReluPoolShape& part) {
      kernels::conv_relu_pool_forward(part, in + first * image_size, w, b, out + first * shape.filters,
                                      bits == nullptr ? nullptr : bits + first * active_size);
    });
  });
  return pooled;
}

/// dweight [F,C,3,3], dbias [F], dx like x or undefined.
variable_list backward_kernel(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& active,
                              const at::Tensor& dpooled, bool with_dx) {
  const ConvReluPoolShape shape = shape_of(x, weight);
  const std::int64_t image_size = shape.channels * shape.height * shape.width;
  const std::int64_t active_size = shape.groups() * shape.padded_filters();
  const std::int64_t blocks = (shape.images + kBlockImages - 1) / kBlockImages;
  at::Tensor dweights = at::empty({blocks, shape.filters, shape.channels, 3, 3}, x.options());
  at::Tensor dbiases = at::empty({blocks, shape.filters}, x.options());
  at::Tensor dx = with_dx ? at::empty_like(x) : at::Tensor();
  const std::uint8_t* bits = active.const_data_ptr<std::uint8_t>();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "conv_relu_pool_backward", [&] {
    const auto* in = x.const_data_ptr<scalar_t>();
    const auto* w = weight.const_data_ptr<scalar_t>();
    const auto* gradient = dpooled.const_data_ptr<scalar_t>();
    auto* dw = dweights.data_ptr<scalar_t>();
    auto* db = dbiases.data_ptr<scalar_t>();
    auto* din = with_dx ? dx.data_ptr<scalar_t>() : nullptr;
    for_each_block(shape, [&](std::int64_t block, std::int64_t first, const ConvReluPoolShape& part) {
      kernels::conv_relu_pool_backward(part, in + first * image_size, w, bits + first * active_size,
                                       gradient + first * shape.filters, dw + block * shape.filters * shape.taps(),
                                       db + block * shape.filters, with_dx ? din + first * image_size : nullptr);
    });
    // Blocks are added in order, by hand: at::sum may split its sums by the number of threads.
    for (std::int64_t block = 1; block < blocks; ++block) {
      for (std::int64_t i = 0; i < shape.filters * shape.taps(); ++i)
        dw[i] += dw[block * shape.filters * shape.taps() + i];
      for (std::int64_t i = 0; i < shape.filters; ++i) db[i] += db[block * shape.filters + i];
    }
  });
  return {dx, dweights.select(0, 0), dbiases.select(0, 0)};
}

class ConvReluPool : public torch::autograd::Function<ConvReluPool> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias) {
    at::Tensor active = at::empty({static_cast<std::int64_t>(shape_of(x, weight).active_bytes())}, at::kByte);
    at::Tensor pooled = forward_kernel(x, weight, bias, active);
    context->save_for_backward({x, weight, active});
    return pooled;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    detail::refuse_double_backward("conv_relu_pool");
    const auto saved = context->get_saved_variables();
    return backward_kernel(saved[0], saved[1], saved[2], gradients[0].contiguous(), context->needs_input_grad(0));
  }
};

}  // namespace

at::Tensor conv_relu_pool(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const bool fits = detail::fits_cpu_kernel({x, weight, bias}) && x.dim() == 4 && weight.dim() == 4 && x.size(0) > 0 &&
                    x.size(1) > 0 && weight.size(0) > 0 && bias.dim() == 1 && bias.size(0) == weight.size(0) &&
                    weight.size(1) == x.size(1) && weight.size(2) == 3 && weight.size(3) == 3 && x.size(2) >= 3 &&
                    x.size(3) >= 3;
  if (!fits) return conv_relu_pool_unfused(x, weight, bias);
  if (!detail::needs_gradient({x, weight, bias})) {
    return forward_kernel(x.contiguous(), weight.contiguous(), bias.contiguous(), {});
  }
  return ConvReluPool::apply(x.contiguous(), weight.contiguous(), bias.contiguous());
}

at::Tensor conv_relu_pool_unfused(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::adaptive_avg_pool2d(at::relu(at::conv2d(x, weight, bias)), {1, 1}).flatten(1);
}

}  // namespace lockstep::models
