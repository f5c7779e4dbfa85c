#include "lockstep/parallel/module_buffers.h"

#include <map>

#include <torch/torch.h>

#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

namespace {

// Runs `exchange` on one flat tensor a type and copies the result back.
template <typename Exchange>
void exchange_by_type(const std::vector<optim::NamedTensor>& tensors, Exchange exchange) {
  at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const auto& entry : tensors) {
    if (entry.tensor.defined() && entry.tensor.numel() > 0) by_type[entry.tensor.scalar_type()].push_back(entry.tensor);
  }
  for (const auto& [type, group] : by_type) {
    std::vector<at::Tensor> rows;
    for (const auto& tensor : group) rows.push_back(tensor.detach().reshape({-1}));
    auto flat = at::cat(rows);
    exchange(flat);
    std::int64_t begin = 0;
    for (const auto& tensor : group) {
      tensor.detach().copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

}  // namespace

void broadcast_tensors(comm::Communicator& communicator, const std::vector<optim::NamedTensor>& tensors) {
  exchange_by_type(tensors, [&](at::Tensor& flat) { communicator.broadcast(buffer_of(flat), 0).wait(); });
}

void average_tensors(comm::Communicator& communicator, const std::vector<optim::NamedTensor>& tensors) {
  exchange_by_type(tensors, [&](at::Tensor& flat) {
    if (!flat.is_floating_point()) return communicator.broadcast(buffer_of(flat), 0).wait();
    communicator.all_reduce(buffer_of(flat), comm::ReduceOp::kSum).wait();
    flat.div_(communicator.size());
  });
}

}  // namespace lockstep::parallel
