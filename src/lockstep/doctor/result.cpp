#include "lockstep/doctor/result.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "lockstep/base/text.h"

namespace lockstep::doctor {
namespace {

constexpr std::array kAllStatuses{Status::kOk, Status::kInfo, Status::kSkip, Status::kWarn, Status::kFail};

std::string padded(std::string_view word, std::size_t width) {
  std::string out(word);
  out.resize(std::max(width, word.size()), ' ');
  return out;
}

}  // namespace

std::string_view status_name(Status status) {
  switch (status) {
    case Status::kOk:
      return "ok";
    case Status::kInfo:
      return "info";
    case Status::kSkip:
      return "skip";
    case Status::kWarn:
      return "warn";
    case Status::kFail:
      return "fail";
  }
  return "unknown";
}

bool any_failed(const std::vector<Result>& results) {
  return std::any_of(results.begin(), results.end(), [](const Result& r) { return r.status == Status::kFail; });
}

nlohmann::ordered_json to_json(const std::vector<Result>& results) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Result& result : results) {
    checks.push_back({{"name", result.name},
                      {"status", status_name(result.status)},
                      {"what", result.what},
                      {"why", result.why},
                      {"hint", result.hint}});
  }
  return {{"schema", "lockstep.doctor/1"}, {"checks", checks}};
}

std::string to_text(const std::vector<Result>& results) {
  std::size_t name_width = 0;
  for (const Result& result : results) name_width = std::max(name_width, result.name.size());
  const std::string indent(4 + 2 + name_width + 2, ' ');
  std::string out;
  for (const Result& result : results) {
    out += text(padded(status_name(result.status), 4), "  ", padded(result.name, name_width), "  ", result.what, '\n');
    if (!result.why.empty()) out += text(indent, "why: ", result.why, '\n');
    if (!result.hint.empty()) out += text(indent, "hint: ", result.hint, '\n');
  }
  std::vector<std::string> totals;
  for (const Status status : kAllStatuses) {
    const auto count =
        std::count_if(results.begin(), results.end(), [&](const Result& result) { return result.status == status; });
    totals.push_back(text(count, ' ', status_name(status)));
  }
  return text(out, '\n', join(totals, ", "), '\n');
}

}  // namespace lockstep::doctor
