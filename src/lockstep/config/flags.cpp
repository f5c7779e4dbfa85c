#include "lockstep/config/flags.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::config {

namespace {

std::string number_text(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: up to here a double holds every whole number
  return std::abs(value) <= kExact && value == std::floor(value) ? text(static_cast<long long>(value)) : text(value);
}

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool in_range(const Flag& flag, double value) {
  if (!std::isfinite(value)) return false;
  const bool above = flag.low_excluded ? value > flag.low : value >= flag.low;
  return above && (flag.high_excluded ? value < flag.high : value <= flag.high);
}

bool is_whole_number_in_range(const Flag& flag, std::string_view word) {
  long long value = 0;
  return parse_number(word, value) && in_range(flag, static_cast<double>(value));
}

[[noreturn]] void refuse(const Flag& flag, std::string_view value, std::string_view place) {
  const auto shown = value.empty() ? std::string("is empty") : text("'", value, "' is not accepted");
  throw ConfigError(text(place, ": ", shown, "; expected ", flag.accepted()));
}

void check_choice(const Flag& flag, std::string_view word, std::string_view place) {
  if (contains(flag.choices, word)) return;
  if (!flag.file_suffix.empty() && word.ends_with(flag.file_suffix)) return;
  if (contains(flag.reserved, word)) {
    throw ConfigError(text(place, " ", word, ": not in this version (have: ", join(flag.choices, ", "), ")"));
  }
  const std::string near = nearest(word, flag.choices);
  if (word.empty() || near.empty()) refuse(flag, word, place);
  throw ConfigError(
      text(place, ": '", word, "' is not accepted; did you mean ", near, "? (expected ", flag.accepted(), ")"));
}

void check_list(const Flag& flag, std::string_view value, std::string_view place) {
  std::vector<std::string> seen;
  for (const auto& item : split(value, ',')) {
    if (flag.choices.empty()) {
      if (!is_whole_number_in_range(flag, item)) refuse(flag, value, place);
    } else {
      check_choice(flag, item, place);
    }
    if (contains(seen, item)) throw ConfigError(text(place, ": '", value, "' names ", item, " twice"));
    seen.push_back(item);
  }
}

void check_value(const Flag& flag, const std::string& value, const std::string& place) {
  double real = 0;
  switch (flag.kind) {
    case FlagKind::kSwitch:
      if (value != "true" && value != "false") refuse(flag, value, place);
      break;
    case FlagKind::kInteger:
      if (!contains(flag.choices, value) && !is_whole_number_in_range(flag, value)) refuse(flag, value, place);
      break;
    case FlagKind::kReal:
      if (!parse_number(value, real) || !in_range(flag, real)) refuse(flag, value, place);
      break;
    case FlagKind::kChoice:
      check_choice(flag, value, place);
      break;
    case FlagKind::kDuration:
      try {
        real = std::chrono::duration<double>(parse_duration(value, place)).count();
      } catch (const ConfigError&) {
        refuse(flag, value, place);
      }
      if (real < flag.low || (flag.low_excluded && real == flag.low)) refuse(flag, value, place);
      break;
    case FlagKind::kPath:
    case FlagKind::kText:
      if (value.empty() || value.find('\0') != std::string::npos) refuse(flag, value, place);
      break;
    case FlagKind::kList:
      check_list(flag, value, place);
      break;
  }
}

}  // namespace

std::string Flag::accepted() const {
  const auto range = [this](std::string_view what) {
    std::string words = text(what, " ", low_excluded ? "above " : "from ", number_text(low));
    if (high >= 1e15 && kind != FlagKind::kInteger)
      return low_excluded ? words : text(what, " of at least ", number_text(low));
    return text(words, low_excluded ? " and " : "",
                high_excluded  ? " to below "
                : low_excluded ? "at most "
                               : " to ",
                number_text(high));
  };
  switch (kind) {
    case FlagKind::kSwitch:
      return "true or false";
    case FlagKind::kInteger:
      return choices.empty() ? range("a whole number") : text(range("a whole number"), " or ", join(choices, ", "));
    case FlagKind::kReal:
      return range("a number");
    case FlagKind::kChoice:
      return text("one of ", join(choices, ", "),
                  file_suffix.empty() ? std::string() : text(", or a file whose name ends in ", file_suffix));
    case FlagKind::kDuration:
      return text("a duration", low_excluded ? " above 0" : "",
                  " such as 500ms, 10s, 30m, 2h (a bare number is seconds)");
    case FlagKind::kPath:
      return "a path";
    case FlagKind::kText:
      return text("a value (", value_name, ")");
    case FlagKind::kList:
      return choices.empty() ? text("whole numbers from ", number_text(low), " to ", number_text(high),
                                    " with commas between, such as 0,2")
                             : text("a list with commas between of ", join(choices, ", "));
  }
  return {};
}

const Flag* CommandSpec::find(std::string_view flag_name) const {
  const auto found = std::find_if(flags.begin(), flags.end(), [&](const Flag& flag) { return flag.name == flag_name; });
  return found == flags.end() ? nullptr : &*found;
}

std::vector<std::string> CommandSpec::flag_names() const {
  std::vector<std::string> names;
  for (const auto& flag : flags) names.push_back(flag.name);
  return names;
}

std::string unknown_name(std::string_view what, std::string_view word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return text("unknown ", what, " ", word, near.empty() ? "" : text("; did you mean ", near, "?"));
}

void FlagValues::set(const Flag& flag, const std::string& value, const std::string& origin, const std::string& place) {
  check_value(flag, value, place);
  if (flag.repeatable) repeated_[flag.name].push_back(value);
  values_[flag.name] = {value, origin};
}

const Flag& FlagValues::flag(std::string_view name) const {
  const Flag* found = spec_->find(name);
  LOCKSTEP_CHECK(found != nullptr);
  return *found;
}

bool FlagValues::given(std::string_view name) const {
  return values_.find(name) != values_.end();
}

bool FlagValues::has_value(std::string_view name) const {
  return given(name) || !flag(name).fallback.empty();
}

std::string FlagValues::origin(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "default" : found->second.origin;
}

std::string FlagValues::place(std::string_view name) const {
  const std::string from = origin(name);
  return from == "flag" || from == "default" ? lockstep::text("--", name) : lockstep::text(from, ": ", name);
}

std::string FlagValues::text(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? flag(name).fallback : found->second.text;
}

long long FlagValues::integer(std::string_view name) const {
  long long value = 0;
  LOCKSTEP_CHECK(parse_number(text(name), value));
  return value;
}

double FlagValues::real(std::string_view name) const {
  double value = 0;
  LOCKSTEP_CHECK(parse_number(text(name), value));
  return value;
}

bool FlagValues::enabled(std::string_view name) const {
  return text(name) == "true";
}

std::chrono::milliseconds FlagValues::duration(std::string_view name) const {
  return parse_duration(text(name), name);
}

std::vector<std::string> FlagValues::list(std::string_view name) const {
  const std::string value = text(name);
  return value.empty() ? std::vector<std::string>{} : split(value, ',');
}

const std::vector<std::string>& FlagValues::all(std::string_view name) const {
  static const std::vector<std::string> kNone;
  const auto found = repeated_.find(name);
  return found == repeated_.end() ? kNone : found->second;
}

namespace {

// "--Batch_Size" stays an error: names are lower case, only the separator is forgiven.
std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool looks_like_flag(const std::string& word) {
  double number = 0;
  return word.size() > 1 && word[0] == '-' && !parse_number(word, number);
}

class Parser {
 public:
  Parser(const CommandSpec& spec, const std::vector<std::string>& args) : spec_(spec), args_(args), values_(spec) {}

  FlagValues parse() {
    while (next_ < args_.size()) {
      const std::string& word = args_[next_++];
      if (word == "--help" || word == "-h") {
        values_.help_requested = true;
        break;
      }
      if (word == "--" || !looks_like_flag(word)) {
        take_rest(word);
        break;
      }
      take_flag(word);
    }
    return std::move(values_);
  }

 private:
  void take_rest(const std::string& word) {
    if (spec_.rest_name.empty() && word != "--") {
      throw ConfigError(text("unexpected word '", word, "': lockstep ", spec_.name, " takes flags only"),
                        text("lockstep ", spec_.name, " --help lists them"));
    }
    values_.rest.assign(args_.begin() + static_cast<long>(word == "--" ? next_ : next_ - 1), args_.end());
    if (spec_.rest_name.empty() && !values_.rest.empty()) {
      throw ConfigError(
          text("unexpected word '", values_.rest.front(), "' after --: lockstep ", spec_.name, " takes flags only"));
    }
  }

  const Flag& find(const std::string& typed) const {
    if (typed.starts_with("--")) {
      if (const Flag* flag = spec_.find(with_dashes(typed.substr(2)))) return *flag;
    } else if (typed.size() == 2) {
      for (const auto& flag : spec_.flags) {
        if (flag.short_name == typed[1]) return flag;
      }
    }
    std::vector<std::string> known{"--help"};
    for (const auto& flag : spec_.flags) known.push_back(text("--", flag.name));
    throw ConfigError(unknown_name("flag", typed, known), text("lockstep ", spec_.name, " --help lists the flags"));
  }

  void take_flag(const std::string& word) {
    const auto equals = word.find('=');
    const Flag& flag = find(word.substr(0, equals));
    const std::string place = text("--", flag.name);
    std::string value = "true";
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (flag.kind != FlagKind::kSwitch) {
      value = next_value(flag, place);
    }
    if (!flag.repeatable && values_.given(flag.name) && values_.text(flag.name) != value) {
      throw ConfigError(
          text(place, " is given twice with different values: ", values_.text(flag.name), " and ", value));
    }
    if (!flag.repeatable && values_.given(flag.name)) return;
    values_.set(flag, value, "flag", place);
  }

  std::string next_value(const Flag& flag, const std::string& place) {
    if (next_ == args_.size()) throw ConfigError(text(place, " needs a value: expected ", flag.accepted()));
    const std::string& value = args_[next_];
    if (looks_like_flag(value)) {
      throw ConfigError(text(place, " needs a value (expected ", flag.accepted(), "), but the next word is ", value),
                        text("a value that begins with a dash is written ", place, "=", value));
    }
    ++next_;
    return value;
  }

  const CommandSpec& spec_;
  const std::vector<std::string>& args_;
  FlagValues values_;
  std::size_t next_ = 0;
};

}  // namespace

FlagValues parse_flags(const CommandSpec& spec, const std::vector<std::string>& args) {
  return Parser(spec, args).parse();
}

}  // namespace lockstep::config
