#include "lockstep/amp/device_scaler.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"

namespace lockstep::amp {

/// What one update found, on its way to the host.
struct DeviceScaler::Found {
  at::Tensor value;  // [] fp32, in pinned memory when it comes from a GPU
  std::optional<c10::Event> arrived;
};

DeviceScaler::DeviceScaler(GradScaler& host, at::Device device) : host_(host), device_(device) {}
DeviceScaler::~DeviceScaler() = default;

void DeviceScaler::take_host_state() {
  if (host_.num_loads() == loads_seen_) return;
  if (!pending_.empty()) {
    throw Error("a loss scale was loaded while updates with the old one are still under way",
                "call settle() on the engine before load() on its scaler");
  }
  const auto state = host_.state();
  scale_ = at::full({}, state.scale, at::TensorOptions(device_));
  growth_tracker_ = at::full({}, state.growth_tracker, at::TensorOptions(device_).dtype(at::kInt));
  not_heard_ = at::zeros({}, at::TensorOptions(device_));
  loads_seen_ = host_.num_loads();
}

const at::Tensor& DeviceScaler::scale() {
  take_host_state();
  return scale_;
}

const at::Tensor& DeviceScaler::not_heard() {
  take_host_state();
  return not_heard_;
}

void DeviceScaler::update(const at::Tensor& found_inf) {
  at::NoGradGuard no_grad;
  take_host_state();
  const auto& options = host_.options();
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options.growth_factor, options.backoff_factor,
                         options.growth_interval);
  scale_.clamp_min_(options.least_scale);
  not_heard_.add_(found_inf);
  auto found = std::make_unique<Found>();
  if (device_.is_cpu()) {
    found->value = found_inf.clone();
  } else {
    found->value = at::empty({}, at::TensorOptions(at::kFloat).pinned_memory(true));
    found->value.copy_(found_inf, /*non_blocking=*/true);
    found->arrived.emplace(device_.type());
    found->arrived->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  pending_.push_back(std::move(found));
}

bool DeviceScaler::hear() {
  LOCKSTEP_CHECK(!pending_.empty());
  const auto found = std::move(pending_.front());
  pending_.pop_front();
  if (found->arrived) found->arrived->synchronize();
  const bool skipped = *found->value.const_data_ptr<float>() != 0;
  if (skipped) not_heard_.sub_(1);
  host_.update(skipped);
  return skipped;
}

}  // namespace lockstep::amp
