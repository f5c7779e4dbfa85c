#include "lockstep/models/fused.h"

#include <algorithm>

#include <torch/torch.h>

#include <ATen/autocast_mode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::models::detail {

bool fits_cpu_kernel(std::initializer_list<at::Tensor> tensors) {
  const auto type = tensors.begin()->scalar_type();
  if ((type != at::kFloat && type != at::kDouble) || at::autocast::is_autocast_enabled(at::kCPU)) return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) {
    return t.device().is_cpu() && t.layout() == at::kStrided && t.scalar_type() == type;
  });
}

bool needs_gradient(std::initializer_list<at::Tensor> tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.requires_grad(); });
}

void refuse_double_backward(const char* operation) {
  if (!at::GradMode::is_enabled()) return;
  throw ConfigError(text(operation, ": the fused operation cannot be differentiated twice (create_graph)"),
                    "switch fusing off: --fuse off, or ModelOptions{.fuse = false}");
}

}  // namespace lockstep::models::detail
