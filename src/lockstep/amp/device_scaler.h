#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/amp/grad_scaler.h"

namespace lockstep::amp {

/// A GradScaler whose decisions fall on the device: scale, growth and found-inf are tensors there, and a step is queued
/// without waiting for them. The GradScaler follows, `kLag` updates later, when what was found has long arrived: it is
/// what a user reads and what checkpoints keep. All ranks hear of the same update at the same step.
///
/// One thread; work goes to the current stream.
class DeviceScaler {
 public:
  static constexpr std::size_t kLag = 2;

  /// `host` is borrowed; its state at the next use is where the device starts from, also after host.load().
  DeviceScaler(GradScaler& host, at::Device device);
  ~DeviceScaler();
  DeviceScaler(const DeviceScaler&) = delete;
  DeviceScaler& operator=(const DeviceScaler&) = delete;

  /// [] fp32: what the loss is multiplied by.
  const at::Tensor& scale();
  /// [] fp32: how many updates were skipped that hear() has not told yet.
  const at::Tensor& not_heard();
  /// Updates that hear() has not told yet.
  std::size_t num_pending() const noexcept { return pending_.size(); }

  /// Ends an update: `found_inf`, [] fp32, is 1 where it was skipped, and the same on all ranks.
  void update(const at::Tensor& found_inf);

  /// Whether the oldest update that is not told yet was skipped; it is told now. Waits for the device only when that
  /// update is not done. Throws GradScaler's error.
  bool hear();

 private:
  struct Found;
  void take_host_state();

  GradScaler& host_;
  const at::Device device_;
  std::int64_t loads_seen_ = -1;
  at::Tensor scale_, growth_tracker_, not_heard_;
  std::deque<std::unique_ptr<Found>> pending_;  // oldest first
};

}  // namespace lockstep::amp
