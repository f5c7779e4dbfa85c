#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/communicator.h"

namespace lockstep::parallel {

/// A bucket on its way: `flat` is its part of the gradient buffer, `parameters` the gradients in it, in layout order,
/// as views in the parameters' shapes. Gradients are weighted sums over this rank's samples, not yet divided by their
/// count (with Average::kRanks: sums over its micro-batches).
struct GradientBucket {
  int index = 0;
  at::Tensor flat;
  std::vector<at::Tensor> parameters;
};

/// Replaces the all-reduce of a bucket. One object a strategy; calls come in the same order on all ranks.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  /// Starts the exchange of one bucket, from the thread that runs backward. When the returned work is done, `flat` must
  /// hold the sum over ranks, or what stands for it. The bucket's tensors live until then.
  virtual comm::Work start(const GradientBucket& bucket, comm::Communicator& communicator) = 0;

  /// State that a checkpoint must keep (error feedback, say); tensors of this object, per rank.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() { return {}; }
};

/// Casts gradients to fp16 or bf16, divides by the world size, sums and casts back: half the bytes (as Python's
/// fp16_compress_hook and bf16_compress_hook). fp16 overflows above 65504.
std::shared_ptr<CommunicationHook> make_fp16_hook();
std::shared_ptr<CommunicationHook> make_bf16_hook();

struct PowerSgdOptions {
  int rank = 1;                  ///< of the approximation
  std::int64_t start_step = 10;  ///< plain sums before that
  double min_compression = 2;    ///< matrices that would shrink by less are summed as they are
  std::uint64_t seed = 0;        ///< of the first right factors, the same on all ranks
};

/// Low-rank approximation with error feedback and warm start (Vogels et al. 2019, PowerSGD). Parameters are taken as
/// matrices [first extent, all others]; vectors are summed as they are.
std::shared_ptr<CommunicationHook> make_power_sgd_hook(const PowerSgdOptions& options);

}  // namespace lockstep::parallel
