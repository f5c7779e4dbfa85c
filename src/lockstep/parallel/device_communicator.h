#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

#include "lockstep/comm/communicator.h"

namespace lockstep::parallel {

/// What a communicator needs to know of torch: the calling thread's current stream on `device`, as its native handle.
std::function<void*()> current_stream_of(at::Device device);

/// Collectives over the ranks' GPUs, with `host`, which is borrowed, for host memory; ordered with the calling thread's
/// current stream. Null when the ranks are on the CPU or there is one: `host` does it all then. All ranks call this
/// together. Throws ConfigError when some are on the CPU and others on GPUs, or two on one GPU.
std::unique_ptr<comm::Communicator> make_device_communicator(comm::Communicator& host, at::Device device);

}  // namespace lockstep::parallel
