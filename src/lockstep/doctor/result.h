#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::doctor {

enum class Status {
  kOk,
  kInfo,  ///< neither good nor bad, worth knowing
  kSkip,  ///< does not apply here, or cannot be looked at
  kWarn,  ///< training works, but something will disappoint
  kFail,  ///< training on what is there does not work
};

/// What one check found.
struct Result {
  std::string name;  ///< stable: scripts rely on it
  Status status = Status::kInfo;
  std::string what;  ///< the finding, one line
  std::string why;   ///< its cause or consequence; may be empty
  std::string hint;  ///< the next step; may be empty
};

std::string_view status_name(Status status);

bool any_failed(const std::vector<Result>& results);

/// {"schema":"lockstep.doctor/1","checks":[{"name","status","what","why","hint"}]}
nlohmann::ordered_json to_json(const std::vector<Result>& results);

/// One line a finding, cause and next step below it, and a last line with the totals.
std::string to_text(const std::vector<Result>& results);

}  // namespace lockstep::doctor
