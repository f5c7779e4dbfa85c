#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::config {

enum class FlagKind {
  kSwitch,    ///< --name, or --name=true|false
  kInteger,   ///< whole number in [low, high], or one of `choices` as a word
  kReal,      ///< number in [low, high], or (low, high] when low_excluded
  kChoice,    ///< one of `choices`
  kDuration,  ///< 500ms 10s 30m 2h, a bare number is seconds; at least `low` seconds
  kPath,      ///< not empty
  kText,      ///< not empty
  kList,      ///< comma-separated: of `choices` when there are some, of whole numbers in [low, high] otherwise
};

/// The largest whole number that a flag can hold, 2^53 - 1: one more and neighbours are the same double.
inline constexpr double kMaxWholeNumber = 9007199254740991.0;

/// One flag, defined once: the parser, --help, the man page, the shell completion and configuration files all read
/// this.
struct Flag {
  std::string name;  ///< without dashes: "batch-size"
  char short_name = 0;
  FlagKind kind = FlagKind::kText;
  std::string value_name = {};  ///< "N", "DIR"; empty for a switch
  double low = 0;
  double high = 0;
  bool low_excluded = false;
  bool high_excluded = false;
  std::vector<std::string> choices = {};
  std::string file_suffix = {};            ///< kChoice: a path that ends so is accepted too
  std::vector<std::string> reserved = {};  ///< choices that a later version will have: refused with that reason
  std::string fallback = {};               ///< the value when it is not given; empty: there is none
  std::string fallback_note = {};          ///< shown in place of `fallback` where that is worked out
  std::string category = {};
  std::string help = {};     ///< one line, no full stop
  std::string details = {};  ///< further sentences for `lockstep help` and the man page
  bool repeatable = false;   ///< values add up; otherwise a second, different value is an error

  /// What may follow the flag, for messages: "a whole number from 1 to 64", "one of sgd, adam, adamw".
  std::string accepted() const;
};

/// A sub-command and its flags.
struct CommandSpec {
  std::string name;
  std::string summary;      ///< one line
  std::string usage;        ///< after "lockstep "
  std::string description;  ///< paragraphs
  std::vector<Flag> flags;
  std::vector<std::string> examples = {};
  std::string rest_name = {};                 ///< when not empty, words after the flags are allowed: "PROG [ARGS...]"
  std::vector<CommandSpec> subcommands = {};  ///< named with this command in front: "data make"

  const Flag* find(std::string_view name) const;
  std::vector<std::string> flag_names() const;
};

/// The value of each flag of one command, with where it came from.
class FlagValues {
 public:
  struct Value {
    std::string text;
    std::string origin;  ///< "default", "flag" or "FILE:LINE"
  };

  /// `spec` must outlive this object.
  explicit FlagValues(const CommandSpec& spec) : spec_(&spec) {}

  /// Takes a value after checking it. Throws ConfigError that starts with `place` ("--lr" or "train.toml:3: lr"), names
  /// the value and says what is accepted.
  void set(const Flag& flag, const std::string& value, const std::string& origin, const std::string& place);

  const CommandSpec& spec() const noexcept { return *spec_; }

  /// Whether a flag or a file gave it.
  bool given(std::string_view name) const;
  bool has_value(std::string_view name) const;
  std::string origin(std::string_view name) const;
  std::string place(std::string_view name) const;  ///< where it stands, for messages: "--lr", "train.toml:3: lr"

  /// The value or its fallback. The flag must have one (has_value) and be of the kind.
  std::string text(std::string_view name) const;
  long long integer(std::string_view name) const;
  double real(std::string_view name) const;
  bool enabled(std::string_view name) const;
  std::chrono::milliseconds duration(std::string_view name) const;
  std::vector<std::string> list(std::string_view name) const;
  const std::vector<std::string>& all(std::string_view name) const;  ///< every value of a repeatable flag

  std::vector<std::string> rest;  ///< words after the flags, untouched
  bool help_requested = false;

 private:
  const Flag& flag(std::string_view name) const;

  const CommandSpec* spec_;
  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, std::vector<std::string>, std::less<>> repeated_;
};

/// Parses the words after the command's name: --flag value, --flag=value, underscores like dashes, -x value. "--", or
/// the first word that is no flag, begins the rest where the command has one. Stops at --help / -h.
/// Throws ConfigError: unknown flag (with the nearest name), missing value, swallowed flag, repeated flag with
/// different values, value out of range, a word that belongs to no flag.
FlagValues parse_flags(const CommandSpec& spec, const std::vector<std::string>& args);

/// Adds what `path` (TOML, same names as the flags, underscores like dashes) says to flags that `values` does not have
/// yet, so that flags win. Throws ConfigError with file:line: syntax, unknown key (with the nearest name), wrong type
/// or range.
void add_config_file(FlagValues& values, const std::string& path);

/// "unknown flag --lrr; did you mean --lr?", for a word that is none of `known`.
std::string unknown_name(std::string_view what, std::string_view word, const std::vector<std::string>& known);

}  // namespace lockstep::config
