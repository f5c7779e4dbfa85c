#include "lockstep/base/text.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace lockstep {

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (const auto& part : parts) {
    if (&part != &parts.front()) out.append(separator);
    out.append(part);
  }
  return out;
}

std::vector<std::string> split(std::string_view line, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const auto end = line.find(separator);
    parts.emplace_back(line.substr(0, end));
    if (end == std::string_view::npos) return parts;
    line.remove_prefix(end + 1);
  }
}

std::string_view trim(std::string_view line) {
  const auto begin = line.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r\n") - begin + 1);
}

namespace {

template <typename Number>
bool parse_whole(std::string_view word, Number& out) {
  if (word.starts_with('+')) word.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || word.empty()) return false;
  out = value;
  return true;
}

}  // namespace

bool parse_number(std::string_view word, long long& out) {
  return parse_whole(word, out);
}
bool parse_number(std::string_view word, double& out) {
  return parse_whole(word, out);
}

std::string fixed(double value, int decimals) {
  char digits[400];
  const int length = std::snprintf(digits, sizeof(digits), "%.*f", decimals, value);
  return std::string(digits, static_cast<size_t>(std::min<int>(length, sizeof(digits) - 1)));
}

namespace {

// Levenshtein distance, one row at a time.
size_t edit_distance(std::string_view left, std::string_view right) {
  std::vector<size_t> row(right.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t l = 1; l <= left.size(); ++l) {
    size_t diagonal = row[0];
    row[0] = l;
    for (size_t r = 1; r <= right.size(); ++r) {
      const size_t substitute = diagonal + (left[l - 1] == right[r - 1] ? 0 : 1);
      diagonal = row[r];
      row[r] = std::min({row[r] + 1, row[r - 1] + 1, substitute});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = 2 + word.size() / 3;
  for (const auto& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace lockstep
