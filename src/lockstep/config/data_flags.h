#pragma once

#include <cstdint>

#include "lockstep/config/flags.h"

namespace lockstep::config {

/// What `lockstep data make --images` accepts.
inline constexpr std::int64_t kMinMadeImages = 5;
inline constexpr std::int64_t kMaxMadeImages = 1'000'000;

/// `lockstep data`, which has the sub-commands `data make` and `data check`.
CommandSpec data_spec();

}  // namespace lockstep::config
