#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lockstep {

namespace detail {

template <typename Part>
void append_text(std::string& out, const Part& part) {
  if constexpr (std::same_as<Part, char>) {
    out.push_back(part);
  } else if constexpr (std::same_as<Part, bool>) {
    out.append(part ? "true" : "false");
  } else if constexpr (std::is_arithmetic_v<Part>) {
    char digits[64];
    const auto end = std::to_chars(digits, digits + sizeof(digits), part);
    out.append(digits, end.ptr);
  } else {
    out.append(std::string_view(part));
  }
}

}  // namespace detail

/// Concatenates strings, characters and numbers (shortest form that reads back equal) into one string.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::string out;
  (detail::append_text(out, parts), ...);
  return out;
}

/// Joins `parts` with `separator` between them.
std::string join(const std::vector<std::string>& parts, std::string_view separator);

/// Splits at each `separator`; "a,,b" gives three parts, "" gives one empty part.
std::vector<std::string> split(std::string_view line, char separator);

std::string_view trim(std::string_view line);

/// Whole-string parses: nullopt-like failure is `false`, `out` is then untouched. No locale, no surrounding blanks.
bool parse_number(std::string_view word, long long& out);
bool parse_number(std::string_view word, double& out);

/// `value` with `decimals` digits after the point, as printf's %.*f.
std::string fixed(double value, int decimals);

/// The candidate nearest to `word` by edit distance (at most 1 + length/3), or "" when none is near:
/// for "unknown flag --batchsize; did you mean --batch-size?".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace lockstep
