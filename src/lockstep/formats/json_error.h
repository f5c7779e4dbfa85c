#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/base/text.h"

namespace lockstep::formats {

/// What is wrong with a JSON file, in our words, to follow the file's name: "not valid JSON at byte 17", or what the
/// library says of a missing or mistyped field without its tag "[json.exception...]".
inline std::string describe(const nlohmann::json::exception& error) {
  if (const auto* syntax = dynamic_cast<const nlohmann::json::parse_error*>(&error)) {
    return text("not valid JSON at byte ", syntax->byte);
  }
  const std::string words = error.what();
  const auto tag_end = words.find("] ");
  return words.starts_with("[json.") && tag_end != std::string::npos ? words.substr(tag_end + 2) : words;
}

}  // namespace lockstep::formats
