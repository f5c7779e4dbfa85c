#include "lockstep/parallel/device_communicator.h"

#include <vector>

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/nccl.h"

namespace lockstep::parallel {

std::function<void*()> current_stream_of(at::Device device) {
  return
      [device, guard = c10::impl::VirtualGuardImpl(device.type())] { return guard.getStream(device).native_handle(); };
}

std::unique_ptr<comm::Communicator> make_device_communicator(comm::Communicator& host, at::Device device) {
  if (host.size() == 1) return nullptr;
  // A rank whose `auto` found no usable GPU trains on the CPU, and must not keep the others waiting.
  const std::uint8_t mine = device.is_cuda() ? 1 : 0;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(host.size()));
  host.all_gather({&mine, 1, comm::Dtype::kU8}, {all.data(), all.size(), comm::Dtype::kU8}).wait();
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto place = [](std::uint8_t on_gpu) { return on_gpu != 0 ? "a GPU" : "the CPU"; };
    throw ConfigError(text("rank 0 is on ", place(all[0]), " and rank ", rank, " on ", place(all[rank]),
                           ": all ranks must be on the same kind of device"),
                      "--device cpu takes the CPU everywhere, --device cuda says why a GPU cannot be used");
  }
  if (mine == 0) return nullptr;
  return comm::make_nccl_communicator(host, {.device = device.index(), .current_stream = current_stream_of(device)});
}

}  // namespace lockstep::parallel
