#include "lockstep/amp/autocast.h"

#include <ATen/autocast_mode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::amp {

std::optional<at::ScalarType> autocast_type(Precision precision) {
  if (precision == Precision::kBf16) return at::kBFloat16;
  if (precision == Precision::kFp16) return at::kHalf;
  return std::nullopt;
}

AutocastScope::AutocastScope(at::DeviceType device_type, at::ScalarType type, bool enabled)
    : device_type_(device_type),
      outer_enabled_(at::autocast::is_autocast_enabled(device_type)),
      outer_type_(at::autocast::get_autocast_dtype(device_type)) {
  if (type != at::kHalf && type != at::kBFloat16) {
    throw ConfigError(text("autocast to ", c10::toString(type), ": expected Half (fp16) or BFloat16 (bf16)"));
  }
  // The cache holds weights by identity, not by type: what an outer scope cast to another type must not be found.
  if (enabled && outer_enabled_ && type != outer_type_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type, enabled);
  at::autocast::set_autocast_dtype(device_type, type);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  // The optimizer changes the weights in place: a copy that outlived the scope would be stale.
  const bool is_outermost = at::autocast::decrement_nesting() == 0;
  const bool type_changes = outer_enabled_ && at::autocast::get_autocast_dtype(device_type_) != outer_type_;
  if (is_outermost || type_changes) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, outer_enabled_);
  at::autocast::set_autocast_dtype(device_type_, outer_type_);
}

}  // namespace lockstep::amp
