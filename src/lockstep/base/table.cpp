#include "lockstep/base/table.h"

#include <algorithm>

namespace lockstep {

namespace {

// Columns on a terminal: UTF-8 continuation bytes take no room of their own.
size_t display_width(const std::string& cell) {
  return static_cast<size_t>(std::count_if(cell.begin(), cell.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string Table::to_string() const {
  std::vector<size_t> widths;
  for (const auto& column : columns) widths.push_back(display_width(column.title));
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size() && c < widths.size(); ++c) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  std::string out;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string cell = cell_of(c);
      const std::string padding(widths[c] - std::min(widths[c], display_width(cell)), ' ');
      if (c > 0) line += "  ";
      line += columns[c].align == Align::kRight ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line([&](size_t c) { return columns[c].title; });
  add_line([&](size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows) {
    add_line([&](size_t c) { return c < row.size() ? row[c] : std::string(); });
  }
  return out;
}

}  // namespace lockstep
