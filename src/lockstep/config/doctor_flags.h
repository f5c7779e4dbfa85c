#pragma once

#include "lockstep/config/flags.h"

namespace lockstep::config {

/// `lockstep doctor`.
CommandSpec doctor_spec();

}  // namespace lockstep::config
