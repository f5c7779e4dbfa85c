#pragma once

namespace lockstep::cli {

/// The project's version, from CMakeLists.txt.
inline constexpr const char* kVersion = LOCKSTEP_VERSION;

}  // namespace lockstep::cli
