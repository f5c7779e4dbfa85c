#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/communicator.h"
#include "lockstep/optim/arena.h"

namespace lockstep::parallel {

/// What a rank knows about its part of a step, and after finish() what all ranks together know: sums over ranks.
struct StepSums {
  double count = 0;       ///< weight of the gradients: samples, or micro-batches with --average ranks
  double loss = 0;        ///< sum of weight * mean loss; NaN when any rank's is
  double loss_count = 0;  ///< samples behind `loss`
  bool stop = false;      ///< some rank was asked to stop
};

/// How gradients meet. The engine calls, in this order: attach() once; for each optimizer step
/// begin_last_backward() before the backward pass of the last micro-batch and finish() after it.
/// Gradients of earlier micro-batches add up locally in the arena.
class Strategy {
 public:
  virtual ~Strategy() = default;

  virtual const char* name() const noexcept = 0;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Makes parameters and buffers those of rank 0 and installs what overlaps communication with backward.
  /// All ranks must call it. Throws CommError when the ranks' models differ in layout. `arena` is borrowed.
  virtual void attach(optim::ParameterArena& arena, const std::vector<optim::NamedTensor>& buffers) = 0;

  /// From here on finished gradients may be sent. `local` travels along with the last bucket.
  virtual void begin_last_backward(const StepSums& local) = 0;

  /// On return the arena's gradients are sums over all ranks (device work queued), and so is the result.
  virtual StepSums finish() = 0;
};

/// One process, one device: nothing to exchange.
std::unique_ptr<Strategy> make_single();

struct DdpOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  ///< small, so that the first reduction starts early
};

/// Distributed data parallel: one replica a rank, gradients summed in buckets while backward still runs. With ranks
/// that are threads of one process over the local communicator this is `dp`. `communicator` is borrowed.
std::unique_ptr<Strategy> make_ddp(comm::Communicator& communicator, const DdpOptions& options);

/// A tensor's memory as a communicator sees it. Must be contiguous and on the CPU. Throws ConfigError for other types.
comm::Buffer buffer_of(const at::Tensor& tensor);

}  // namespace lockstep::parallel
