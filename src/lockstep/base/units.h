#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// Parses "500ms", "10s", "30m", "2h"; a bare number is seconds, fractions are allowed ("1.5h").
/// Throws ConfigError that names `what` (a flag, say) and the accepted forms. Negative durations are refused.
std::chrono::milliseconds parse_duration(std::string_view word, std::string_view what);

/// "850 ms", "12.3 s", "4 min 05 s", "2 h 07 min".
std::string format_duration(std::chrono::duration<double> duration);

/// "512 B", "1.5 KiB", "23.4 MiB", "139.8 GiB".
std::string format_bytes(std::uint64_t bytes);

/// 1234567 -> "1,234,567".
std::string format_count(std::uint64_t count);

/// UTC now as "2026-11-30T11:16:31.123Z" and, for file names, "20261130-111631".
std::string utc_timestamp(std::chrono::system_clock::time_point now);
std::string utc_file_stamp(std::chrono::system_clock::time_point now);

}  // namespace lockstep
