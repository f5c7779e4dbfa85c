#include "lockstep/base/units.h"

#include <array>
#include <cmath>
#include <ctime>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

std::chrono::milliseconds parse_duration(std::string_view word, std::string_view what) {
  struct Unit {
    std::string_view suffix;
    double seconds;
  };
  // "ms" before "m" and "s": the first suffix that fits wins.
  constexpr std::array<Unit, 4> kUnits{{{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}}};
  double scale = 1;
  std::string_view number = word;
  for (const auto& unit : kUnits) {
    if (word.ends_with(unit.suffix)) {
      scale = unit.seconds;
      number.remove_suffix(unit.suffix.size());
      break;
    }
  }
  double value = 0;
  constexpr double kMaxSeconds = 1e9;
  if (!parse_number(number, value) || !(value >= 0) || value * scale > kMaxSeconds) {
    throw ConfigError(text(what, ": '", word, "' is not a duration (expected a number with ms, s, m or h, ",
                           "for example 500ms, 10s, 30m, 2h; a bare number is seconds)"));
  }
  return std::chrono::milliseconds(std::llround(value * scale * 1000));
}

namespace {

std::string two_digits(long long value) {
  return text(value < 10 ? "0" : "", value);
}

}  // namespace

std::string format_duration(std::chrono::duration<double> duration) {
  const double seconds = duration.count();
  if (seconds < 0.9995) return text(fixed(seconds * 1000, 0), " ms");
  if (seconds < 59.95) return text(fixed(seconds, 1), " s");
  const auto whole = std::llround(seconds);
  if (whole < 3600) return text(whole / 60, " min ", two_digits(whole % 60), " s");
  return text(whole / 3600, " h ", two_digits(whole % 3600 / 60), " min");
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return text(bytes, " B");
  double value = static_cast<double>(bytes);
  std::string_view unit;
  for (std::string_view next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (!unit.empty() && value < 1023.95) break;
    value /= 1024;
    unit = next;
  }
  return text(fixed(value, 1), " ", unit);
}

std::string format_count(std::uint64_t count) {
  std::string digits = text(count);
  for (auto place = static_cast<long>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<size_t>(place), 1, ',');
  }
  return digits;
}

namespace {

std::string utc_text(std::chrono::system_clock::time_point now, const char* format) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(now));
  std::tm broken_down{};
  gmtime_r(&seconds, &broken_down);
  char out[64];
  return std::string(out, std::strftime(out, sizeof(out), format, &broken_down));
}

}  // namespace

std::string utc_timestamp(std::chrono::system_clock::time_point now) {
  const auto since_epoch = std::chrono::floor<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const std::string millis = text(1000 + since_epoch % 1000);
  return text(utc_text(now, "%Y-%m-%dT%H:%M:%S"), ".", millis.substr(1), "Z");
}

std::string utc_file_stamp(std::chrono::system_clock::time_point now) {
  return utc_text(now, "%Y%m%d-%H%M%S");
}

}  // namespace lockstep
