#pragma once

#include <string_view>

namespace lockstep::log {

/// One line on standard error, written with a single write() so that lines of several processes do not mix:
/// "lockstep: <message>", "lockstep: warning: <message>", "lockstep: error: <message>". Thread-safe.
void info(std::string_view message);
void warning(std::string_view message);
void error(std::string_view message);

}  // namespace lockstep::log
