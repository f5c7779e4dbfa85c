#pragma once

#include <string_view>

namespace lockstep {

/// Throws ConfigError "<what> is <value>: expected <expected>" unless `holds`: for options of the library's classes.
void require_option(bool holds, std::string_view what, double value, std::string_view expected);

}  // namespace lockstep
