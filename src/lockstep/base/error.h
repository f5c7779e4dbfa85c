#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

/// Root of every exception that Lockstep throws. The types are API, the text is not.
///
/// `what()` says what happened, where (rank, host, file, offset) and what was expected; a next step, when one is
/// known, follows on a line of its own that starts with "hint: ".
class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view message, std::string_view hint = {});

  /// The process exit code that stands for this error at the command line: 2 for usage and environment, 1 otherwise.
  virtual int exit_code() const noexcept { return 1; }
};

/// A flag, a configuration file or an API option is wrong. Nothing was started.
class ConfigError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 2; }
};

/// An input file or data set is missing, damaged or not what was asked for.
class DataError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 2; }
};

/// A checkpoint is damaged, incomplete, foreign or does not fit the model.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A collective failed: a peer died, sizes differ, the segment is gone. The communicator is unusable afterwards.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A bounded wait ran out. The text names who did not come and what was waited for.
class TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

/// An operating system call failed.
class SystemError : public Error {
 public:
  using Error::Error;

  /// Message "<what>: <strerror(error_number)>".
  static SystemError from_errno(std::string_view what, int error_number);
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

/// A programmer's error, never reachable from user input: throws std::logic_error with the place.
#define LOCKSTEP_CHECK(condition)                                               \
  do {                                                                          \
    if (!(condition)) ::lockstep::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)

}  // namespace lockstep
