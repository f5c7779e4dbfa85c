#pragma once

#include <functional>
#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/device_api.h"

namespace lockstep::comm {

struct NcclOptions {
  /// CUDA's index of this rank's GPU; no two ranks share one.
  int device = 0;
  /// The stream (cudaStream_t) of the calling thread on that GPU: collectives start after the work queued on it, and
  /// Work::wait() makes it wait for them.
  std::function<void*()> current_stream = {};
  CommOptions limits = {};  ///< rendezvous_timeout bounds NCCL's own start-up
};

/// Collectives over the ranks' GPUs through NCCL (NVIDIA's library), each on a stream of the communicator's own; host
/// memory goes through `host`, which is borrowed, and which at most one such communicator uses at a time. All ranks
/// call this together. The backend is called "nccl".
///
/// Nothing here waits for the GPU. A watcher thread compares what the ranks ask for, bounds the wait for the others and
/// sees a rank's process end; it then aborts NCCL's kernels, which frees a thread that waits for the GPU, and the next
/// call throws the reason. Sums are in NCCL's order: the same on all ranks, and from run to run on the same machine.
///
/// Throws ConfigError (two ranks on one GPU, no NCCL), CommError, TimeoutError. After a TimeoutError of this function
/// NCCL's start-up still hangs in a thread: end the process.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, NcclOptions options);
/// With other functions than those of find_device_api().
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, NcclOptions options, const DeviceApi& api);

}  // namespace lockstep::comm
