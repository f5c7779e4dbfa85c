#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Plain-text table: columns as wide as their longest cell, numbers to the right.
struct Table {
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;

  /// Lines ending in '\n', two blanks between columns, a rule under the titles.
  std::string to_string() const;
};

}  // namespace lockstep
