#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/communicator.h"
#include "lockstep/optim/arena.h"
#include "lockstep/optim/update_plan.h"

namespace lockstep::parallel {

class CommunicationHook;

/// What a rank knows about its part of a step, and after finish() what all ranks together know: sums over ranks.
struct StepSums {
  double count = 0;       ///< weight of the gradients: samples, or micro-batches with --average ranks
  double loss = 0;        ///< sum of weight * mean loss; NaN when any rank's is
  double loss_count = 0;  ///< samples behind `loss`
  bool stop = false;      ///< some rank was asked to stop
  double active = 1;      ///< 1 for a rank that has data; the sum says how many ranks have
  double loss_scale = 1;  ///< that the gradients carry; must be the same on all ranks, and stays as it is
  double failed = 0;      ///< 1 for a rank whose forward or backward threw; the sum says how many did
  int failed_rank = -1;   ///< after finish(): the rank, when one alone failed
  /// Only after finish(): unused[s] != 0 for a segment (in layout order) that no rank used. Empty: all were used.
  std::vector<char> unused = {};
};

/// One bucket of gradients, for people to read.
struct BucketInfo {
  std::int64_t bytes = 0;
  std::vector<std::string> parameters;
};

/// What the exchange of gradients has cost this rank so far. On the CPU the calling thread moves the data itself.
struct ExchangeStatistics {
  std::chrono::nanoseconds in_backward{0};  ///< spent on sending while backward still had work: overlapped
  std::chrono::nanoseconds waiting{0};      ///< spent after backward, until all gradients were there: exposed
  std::int64_t bytes = 0;                   ///< of gradients handed to collectives
  std::vector<BucketInfo> buckets;          ///< in the order in which they are sent
};

/// How gradients meet. The engine calls, in this order: attach() once; for each micro-batch begin_backward() between
/// forward and backward; after the last of a step finish(), then, once the optimizer has moved the pieces of
/// update_plan(), publish(). All ranks make the same calls.
class Strategy {
 public:
  virtual ~Strategy() = default;

  virtual const char* name() const noexcept = 0;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Whether the arena must hold gradients for it.
  virtual optim::ParameterArena::Gradients arena_gradients() const noexcept {
    return optim::ParameterArena::Gradients::kHeld;
  }

  /// Makes parameters and buffers those of rank 0 and installs what overlaps communication with backward.
  /// Throws CommError when the ranks' models differ in layout. `arena` is borrowed.
  virtual void attach(optim::ParameterArena& arena, const std::vector<optim::NamedTensor>& buffers) = 0;

  /// Keeps the layout as it is, or makes it `order` (names, as layout_names() gives them): for a run that is resumed,
  /// whose sums must run as they did. Without this call the first step rearranges the arena by the order in which
  /// gradients became ready. Throws CheckpointError when the names are not those of the parameters.
  virtual void fix_layout(const std::vector<std::string>& /*order*/) {}
  /// False until the first finish(): until then optimizer state has no place.
  virtual bool layout_is_fixed() const noexcept { return true; }

  /// What this rank updates; valid once the layout is fixed, with `gradient_shards` that stay the same tensors.
  virtual optim::UpdatePlan update_plan() const = 0;

  /// The first micro-batch of a step follows: gradients that came in between, by somebody else's backward pass through
  /// these parameters, do not count.
  virtual void begin_step() {}

  /// The backward pass of a micro-batch follows; `last` ends the step. `local` is this rank's part of the step so far,
  /// and travels along with the last one.
  virtual void begin_backward(bool last, const StepSums& local) = 0;

  /// This rank's backward threw: finish() is to tell the others.
  virtual void fail_step() noexcept {}

  /// On return the gradients of update_plan() are sums over all ranks (device work queued), and so is the result.
  /// Throws Error that names parameters when some were not used though all must be, on all ranks together.
  /// When some rank failed, the gradients mean nothing; the ranks are in step again all the same.
  virtual StepSums finish() = 0;

  virtual ExchangeStatistics statistics() const { return {}; }

  /// Rank 0's value, on all ranks.
  virtual double broadcast(double value) { return value; }

  /// After the update: every rank gets all values, and rank 0's (or the mean of all) module buffers.
  virtual void publish() = 0;
};

/// The arena's segment names in layout order, for fix_layout().
std::vector<std::string> layout_names(const optim::ParameterArena& arena);

/// One process, one device: nothing to exchange.
std::unique_ptr<Strategy> make_single();

/// What to do with parameters that get no gradient in a step.
enum class UnusedParameters {
  kOff,   ///< every parameter must be used by every rank in every step: an error names those that were not
  kOn,    ///< any may be unused: zeros where another rank used it, untouched where none did
  kAuto,  ///< kOn for the first ten steps; kOff from then on if all were used in all of them, else kOn
};

/// What happens to module buffers (BatchNorm's running statistics) after each step.
enum class BufferSync {
  kBroadcast,  ///< all take rank 0's
  kMean,       ///< floating-point ones become the mean over ranks, the others rank 0's
  kNone,       ///< each rank keeps its own: evaluations then differ between ranks
};

struct DdpOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  ///< small, so that the first reduction starts early
  UnusedParameters unused = UnusedParameters::kAuto;
  bool static_graph = false;  ///< the same parameters get gradients in the same number in every step: else an error
  BufferSync buffers = BufferSync::kBroadcast;
  bool rebuild_buckets = true;                   ///< by the order in which the first step's gradients became ready
  std::shared_ptr<CommunicationHook> hook = {};  ///< replaces the plain all-reduce of a bucket
};

/// Distributed data parallel: one replica a rank, gradients summed in buckets while backward still runs (Li et al.
/// 2020). With ranks that are threads of one process over the local communicator this is `dp`. `communicator` is
/// borrowed.
std::unique_ptr<Strategy> make_ddp(comm::Communicator& communicator, const DdpOptions& options);

/// A tensor's memory as a communicator sees it. Must be contiguous, on the CPU or a GPU. Throws ConfigError for other
/// types.
comm::Buffer buffer_of(const at::Tensor& tensor);

}  // namespace lockstep::parallel
