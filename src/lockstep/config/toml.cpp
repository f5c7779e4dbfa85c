#include <algorithm>

#include <toml++/toml.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/config/flags.h"

namespace lockstep::config {

namespace {

// The value as it would be typed after the flag; nullopt when a TOML type has no such form.
std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* value = node.as_integer()) return text(value->get());
  if (const auto* value = node.as_floating_point()) return text(value->get());
  if (const auto* value = node.as_boolean()) return text(value->get());
  return std::nullopt;
}

bool type_fits(const Flag& flag, const toml::node& node) {
  switch (flag.kind) {
    case FlagKind::kSwitch:
      return node.is_boolean();
    case FlagKind::kInteger:
      return node.is_integer() || (!flag.choices.empty() && node.is_string());
    case FlagKind::kReal:
      return node.is_number();
    case FlagKind::kDuration:
      return node.is_number() || node.is_string();
    case FlagKind::kList:
      return node.is_array() || node.is_string() || node.is_integer();
    case FlagKind::kChoice:
    case FlagKind::kPath:
    case FlagKind::kText:
      return node.is_string();
  }
  return false;
}

std::string value_text(const Flag& flag, const toml::node& node, const std::string& place) {
  const auto wrong_type = [&] {
    return ConfigError(text(place, ": has the wrong type; expected ", flag.accepted(),
                            flag.kind == FlagKind::kInteger || flag.kind == FlagKind::kReal ? ", without quotes" : ""));
  };
  if (!type_fits(flag, node)) throw wrong_type();
  if (const auto* array = node.as_array()) {
    std::vector<std::string> items;
    for (const auto& item : *array) {
      const auto item_text = scalar_text(item);
      if (!item_text) throw wrong_type();
      items.push_back(*item_text);
    }
    return join(items, ",");
  }
  return scalar_text(node).value();
}

toml::table parse_file(const std::string& path) {
  try {
    return toml::parse(read_file(path), std::string_view(path));
  } catch (const toml::parse_error& error) {
    throw ConfigError(text(path, ":", error.source().begin.line, ": ", error.description()));
  } catch (const DataError& error) {
    throw ConfigError(text("--config ", error.what()));
  }
}

}  // namespace

void add_config_file(FlagValues& values, const std::string& path) {
  const toml::table table = parse_file(path);
  const CommandSpec& spec = values.spec();
  for (const auto& [key, node] : table) {
    const std::string typed(key.str());
    const std::string origin = text(path, ":", node.source().begin.line);
    std::string name = typed;
    std::replace(name.begin(), name.end(), '_', '-');
    const Flag* flag = spec.find(name);
    if (flag == nullptr || name == "config") {
      throw ConfigError(text(origin, ": ", unknown_name("key", typed, spec.flag_names())),
                        text("the keys are the flags of lockstep ", spec.name, ", without dashes before them"));
    }
    const std::string value = value_text(*flag, node, text(origin, ": ", typed));
    if (values.given(name) && values.origin(name) != "flag") {
      throw ConfigError(text(origin, ": ", typed, " is set a second time (first at ", values.origin(name), ")"));
    }
    if (values.given(name)) {
      // The flag wins, but a bad line in the file is still an error: it would bite the next run.
      FlagValues(spec).set(*flag, value, origin, text(origin, ": ", typed));
      continue;
    }
    values.set(*flag, value, origin, text(origin, ": ", typed));
  }
}

}  // namespace lockstep::config
