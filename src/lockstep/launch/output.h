#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file.h"

namespace lockstep::launch {

/// Cuts a stream of bytes into lines. A line longer than kMaxLineBytes is handed on in pieces of that size.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxLineBytes = 1 << 18;
  using Emit = std::function<void(std::string_view line)>;  ///< without its newline

  void feed(std::string_view bytes, const Emit& emit);

  /// The last line, when it has no newline.
  void finish(const Emit& emit);

  /// A progress bar redraws one line with '\r' and never ends it: hands on its newest complete drawing and forgets the
  /// older ones. Returns false when the unfinished line is none.
  bool take_redraw(const Emit& emit);

 private:
  std::string partial_;
};

/// Queue in front of one of our own descriptors, so that a slow or stopped reader (a pager, Ctrl-S) delays output but
/// never the watching of the job. The descriptor stays in blocking mode, since its flags are shared with other
/// processes: each write is preceded by a poll and small enough not to block after it.
class ConsoleStream {
 public:
  explicit ConsoleStream(int fd) : fd_(fd) {}

  int fd() const noexcept { return fd_; }
  std::size_t pending_bytes() const noexcept { return queue_.size() - written_; }
  bool is_broken() const noexcept { return broken_; }

  void push(std::string_view bytes);

  /// Writes what the reader takes without waiting. Returns whether any byte went out. After an error (the reader or the
  /// terminal is gone) everything is dropped from then on.
  bool flush();

 private:
  int fd_;
  std::string queue_;
  std::size_t written_ = 0;
  bool broken_ = false;
};

/// One output stream of one rank: its pipe, its log file, its lines to the console and the last of them to remember.
class RankStream {
 public:
  static constexpr std::size_t kLinesKept = 30;

  /// `log_file` empty: none. `prefix` empty: whole lines without one. Throws SystemError when the file cannot be made.
  RankStream(UniqueFd pipe, ConsoleStream* console, std::string prefix, const std::filesystem::path& log_file);

  int fd() const noexcept { return pipe_.get(); }
  bool is_open() const noexcept { return static_cast<bool>(pipe_); }
  const std::deque<std::string>& last_lines() const noexcept { return last_lines_; }

  /// Reads what is there, at most `limit_bytes`, and closes the pipe at its end.
  void read_available(std::size_t limit_bytes);

  /// Reads what is left, hands on a last line without newline and closes. Never waits for a writer.
  void close();

  /// Shows the newest state of a progress bar, at most every two seconds.
  void show_redraw(std::chrono::steady_clock::time_point now);

 private:
  void take_line(std::string_view line);
  void take_bytes(std::string_view bytes);

  UniqueFd pipe_;
  UniqueFd log_;
  std::string log_path_;
  ConsoleStream* console_;
  std::string prefix_;
  LineSplitter splitter_;
  std::deque<std::string> last_lines_;
  std::chrono::steady_clock::time_point last_shown_{};
};

}  // namespace lockstep::launch
