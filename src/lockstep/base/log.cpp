#include "lockstep/base/log.h"

#include <unistd.h>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::log {

namespace {

void write_line(std::string_view level, std::string_view message) {
  const std::string line = text("lockstep: ", level, message, "\n");
  // Nowhere is left to report a failure of standard error itself.
  [[maybe_unused]] const bool written = try_write_all(STDERR_FILENO, line);
}

}  // namespace

void info(std::string_view message) {
  write_line("", message);
}
void warning(std::string_view message) {
  write_line("warning: ", message);
}
void error(std::string_view message) {
  write_line("error: ", message);
}

}  // namespace lockstep::log
