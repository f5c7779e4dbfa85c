#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/telemetry/run_summary.h"

namespace lockstep::cli {

/// What a person sees of a run: lines on standard output (on standard error when that carries a JSON document), and one
/// progress bar on standard error that is redrawn in place and taken away before a line is written. No colours; with
/// NO_COLOR in the environment no escape sequence at all.
class Console {
 public:
  /// `progress`: auto (a bar when standard error is a terminal), on, off.
  Console(bool json, const std::string& progress);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  ~Console() { clear_bar(); }

  void line(std::string_view words);
  void note(std::string_view words);  ///< on standard error, after "lockstep: "

  /// Redraws the bar when the run has come further. `epochs` is what was planned.
  void show_progress(const telemetry::RunSummary& summary, std::int64_t epochs);
  void clear_bar();

 private:
  std::string erase_line() const;

  bool json_;
  bool bar_;
  bool in_place_;  ///< a terminal: the bar overwrites itself
  bool is_plain_;  ///< NO_COLOR: blanks erase what an escape sequence would
  std::size_t drawn_width_ = 0;
  bool drawn_ = false;
  std::int64_t drawn_steps_ = -1;
  std::optional<std::chrono::steady_clock::time_point> first_seen_;
  std::int64_t first_steps_ = 0;
};

}  // namespace lockstep::cli
