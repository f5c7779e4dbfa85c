#include "lockstep/train/optimizer_state.h"

#include <torch/torch.h>

#include "lockstep/base/text.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/weights.h"

namespace lockstep::train {

namespace {

using optim::NamedTensor;

// The state laid out as the values are, with all ranks' parts. Each element has one owner and the others bring zero
// bits, so that an integer sum keeps every bit (a floating-point one would turn -0 into 0).
at::Tensor whole_state(const optim::Optimizer& optimizer, const optim::ParameterArena& arena,
                       const optim::Optimizer::State& state, comm::Communicator& communicator) {
  if (!optimizer.plan().is_sharded()) return state.tensor;
  const auto& buffer = arena.buffers()[static_cast<std::size_t>(state.buffer)];
  auto flat = at::zeros({buffer.numel}, state.tensor.options());
  optim::copy_from_state(arena, optimizer.plan(), state.buffer, state.tensor, flat);
  auto host = flat.to(at::kCPU);
  auto bits = host.view(state.tensor.element_size() == 8 ? at::kLong : at::kInt);
  communicator.all_reduce(parallel::buffer_of(bits), comm::ReduceOp::kSum).wait();
  return host;
}

NamedTensor step_tensor(const optim::Segment& segment, const std::vector<std::int64_t>& steps) {
  return {text(segment.name, ".step"), at::scalar_tensor(steps[static_cast<std::size_t>(segment.index)], at::kLong)};
}

}  // namespace

std::vector<NamedTensor> gather_optimizer_state(const optim::Optimizer& optimizer, const optim::ParameterArena& arena,
                                                comm::Communicator& communicator) {
  std::vector<NamedTensor> tensors;
  for (const auto& state : optimizer.state()) {
    const auto flat = whole_state(optimizer, arena, state, communicator);
    for (const auto& segment : arena.segments()) {
      if (segment.buffer == state.buffer)
        tensors.push_back({text(segment.name, ".", state.name), arena.view(flat, segment)});
    }
  }
  for (const auto& segment : arena.segments()) tensors.push_back(step_tensor(segment, optimizer.parameter_steps()));
  return tensors;
}

void load_optimizer_state(optim::Optimizer& optimizer, const optim::ParameterArena& arena,
                          const std::vector<NamedTensor>& tensors, std::string_view origin) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> flats;
  std::vector<NamedTensor> targets;
  for (const auto& state : optimizer.state()) {
    const auto& buffer = arena.buffers()[static_cast<std::size_t>(state.buffer)];
    flats.push_back(at::zeros({buffer.numel}, state.tensor.options()));
    for (const auto& segment : arena.segments()) {
      if (segment.buffer != state.buffer) continue;
      targets.push_back({text(segment.name, ".", state.name), arena.view(flats.back(), segment)});
    }
  }
  const std::size_t num_states = targets.size();
  for (const auto& segment : arena.segments()) targets.push_back(step_tensor(segment, optimizer.parameter_steps()));
  copy_by_name(targets, tensors, origin);

  for (std::size_t s = 0; s < flats.size(); ++s) {
    const auto& state = optimizer.state()[s];
    optim::copy_to_state(arena, optimizer.plan(), state.buffer, flats[s], state.tensor);
  }
  std::vector<std::int64_t> steps(arena.segments().size());
  for (std::size_t s = 0; s < steps.size(); ++s) {
    steps[static_cast<std::size_t>(arena.segments()[s].index)] = targets[num_states + s].tensor.item<std::int64_t>();
  }
  optimizer.set_parameter_steps(std::move(steps));
}

}  // namespace lockstep::train
