#include "lockstep/cli/console.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/base/file.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::cli {

namespace {

// A reader that has gone away (| head) must not end a job that trains: failures to show something are dropped.
void show(int fd, std::string_view words) {
  [[maybe_unused]] const bool written = try_write_all(fd, words);
}

bool is_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

// no-color.org: set and not empty.
bool is_no_color_set() {
  const char* word = std::getenv("NO_COLOR");
  return word != nullptr && *word != '\0';
}

std::string bar(double fraction) {
  constexpr int kCells = 24;
  const int full = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * kCells);
  return text("[", std::string(static_cast<std::size_t>(full), '='), full < kCells ? ">" : "",
              std::string(static_cast<std::size_t>(std::max(0, kCells - full - 1)), ' '), "]");
}

}  // namespace

Console::Console(bool json, const std::string& progress)
    : json_(json),
      bar_(progress == "on" || (progress == "auto" && is_terminal(STDERR_FILENO))),
      in_place_(is_terminal(STDERR_FILENO)),
      is_plain_(is_no_color_set()) {}

void Console::line(std::string_view words) {
  clear_bar();
  show(json_ ? STDERR_FILENO : STDOUT_FILENO, text(words, "\n"));
}

void Console::note(std::string_view words) {
  clear_bar();
  log::info(words);
}

std::string Console::erase_line() const {
  return is_plain_ ? text("\r", std::string(drawn_width_, ' '), "\r") : "\r\033[K";
}

void Console::clear_bar() {
  if (drawn_ && in_place_) show(STDERR_FILENO, erase_line());
  drawn_ = false;
}

void Console::show_progress(const telemetry::RunSummary& summary, std::int64_t epochs) {
  if (!bar_ || summary.steps_per_epoch() <= 0 || summary.ended()) return;
  const std::int64_t steps = summary.steps();
  if (steps == drawn_steps_) return;
  const auto now = std::chrono::steady_clock::now();
  if (!first_seen_) {
    first_seen_ = now;
    first_steps_ = steps;
  }
  const std::int64_t per_epoch = summary.steps_per_epoch();
  const std::int64_t done = steps % per_epoch;
  std::string words =
      text("epoch ", std::min(steps / per_epoch + 1, epochs), "/", epochs, " ",
           bar(static_cast<double>(done) / static_cast<double>(per_epoch)), " step ", done, "/", per_epoch);
  const auto& last = summary.last_step();
  if (last.is_object() && last.contains("loss") && last["loss"].is_number()) {
    words += text("  loss ", fixed(last["loss"].get<double>(), 4));
  }
  const double seconds = std::chrono::duration<double>(now - *first_seen_).count();
  if (steps > first_steps_ && seconds > 0.5) {
    const double rate = static_cast<double>(steps - first_steps_) / seconds;
    const double left = static_cast<double>(epochs * per_epoch - steps) / rate;
    words += text("  ", fixed(rate, 1), " steps/s  ", format_duration(std::chrono::duration<double>(left)), " left");
  }
  show(STDERR_FILENO, in_place_ ? text(erase_line(), words) : text(words, "\n"));
  drawn_width_ = words.size();
  drawn_ = true;
  drawn_steps_ = steps;
}

}  // namespace lockstep::cli
