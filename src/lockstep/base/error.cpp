#include "lockstep/base/error.h"

#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep {

namespace {

std::string with_hint(std::string_view message, std::string_view hint) {
  return hint.empty() ? std::string(message) : text(message, "\nhint: ", hint);
}

}  // namespace

Error::Error(std::string_view message, std::string_view hint) : std::runtime_error(with_hint(message, hint)) {}

SystemError SystemError::from_errno(std::string_view what, int error_number) {
  return SystemError(text(what, ": ", std::strerror(error_number)));
}

void check_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(text("internal error at ", file, ":", line, ": ", condition, " does not hold"));
}

}  // namespace lockstep
