#include "lockstep/telemetry/run_summary.h"

#include <algorithm>
#include <array>

namespace lockstep::telemetry {

using nlohmann::json;

namespace {

constexpr std::array<const char*, 5> kFacts{"strategy", "world_size", "device", "global_batch", "lr"};
constexpr std::array kEpochFields{"epoch",        "steps",      "train_loss", "eval_loss",         "eval_accuracy",
                                  "eval_correct", "eval_total", "seconds",    "images_per_second", "peak_memory_bytes"};

std::int64_t integer(const json& event, const char* field, std::int64_t fallback) {
  const auto found = event.find(field);
  return found != event.end() && found->is_number_integer() ? found->get<std::int64_t>() : fallback;
}

std::string string(const json& event, const char* field) {
  const auto found = event.find(field);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

RunSummary::RunSummary(json expected) : facts_(std::move(expected)) {}

void RunSummary::add(const json& event) {
  const std::string type = string(event, "event");
  if (type == "run_start") {
    take_start(event);
  } else if (type == "step") {
    steps_ = integer(event, "step", steps_);
    last_step_ = event;
  } else if (type == "epoch") {
    take_epoch(event);
  } else if (type == "checkpoint") {
    newest_checkpoint_ = string(event, "path");
  } else if (type == "fault") {
    fault_ = string(event, "message");
  } else if (type == "run_end") {
    exit_ = string(event, "exit");
    steps_ = integer(event, "steps", steps_);
    weights_sha256_ = string(event, "final_weights_sha256");
    if (fault_.empty()) fault_ = string(event, "message");
  }
}

void RunSummary::take_start(const json& event) {
  *this = RunSummary(std::move(facts_));
  started_ = true;
  for (const char* fact : kFacts) {
    if (event.contains(fact)) facts_[fact] = event[fact];
  }
  steps_per_epoch_ = integer(event, "steps_per_epoch", 0);
  if (event.contains("resumed_from_step") && event["resumed_from_step"].is_number_integer()) {
    resumed_from_step_ = event["resumed_from_step"].get<std::int64_t>();
    steps_ = *resumed_from_step_;
  }
}

void RunSummary::take_epoch(const json& event) {
  json epoch = json::object();
  for (const char* field : kEpochFields) epoch[field] = event.contains(field) ? event[field] : json(nullptr);
  epochs_.push_back(std::move(epoch));
  // Step events are for every Nth step only: the end of an epoch tells the rest. The last epoch may be a part of one,
  // and the first after a resume counts its own steps only, so this is a lower bound.
  const std::int64_t before = (integer(event, "epoch", 1) - 1) * steps_per_epoch_;
  steps_ = std::max(steps_, before + integer(event, "steps", 0));
}

std::string RunSummary::exit(const JobEnd& end) const {
  if (end.exit_code == 0) return started_ ? exit_.value_or("completed") : "failed";
  if (end.stopped_by_signal) return "stopped";
  return "failed";
}

json RunSummary::document(const JobEnd& end, const std::string& run_dir) const {
  json document = json::object();
  document["schema"] = "lockstep.train/1";
  for (const char* fact : kFacts) document[fact] = facts_.contains(fact) ? facts_[fact] : json(nullptr);
  document["resumed_from_step"] = resumed_from_step_ ? json(*resumed_from_step_) : json(nullptr);
  document["epochs"] = epochs_;
  document["steps"] = steps_;
  document["final_weights_sha256"] = weights_sha256_.empty() ? json(nullptr) : json(weights_sha256_);
  document["exit"] = exit(end);
  document["exit_code"] = end.exit_code;
  document["run_dir"] = run_dir;
  if (!end.failure.is_null() || !fault_.empty()) {
    json failure = end.failure.is_object() ? end.failure : json::object();
    if (!fault_.empty() && document["exit"] == "failed") failure["message"] = fault_;
    if (!failure.empty()) document["failure"] = failure;
  }
  return document;
}

std::optional<double> RunSummary::median(const char* field) const {
  std::vector<double> values;
  for (const auto& epoch : epochs_) {
    if (epoch[field].is_number()) values.push_back(epoch[field].get<double>());
  }
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::optional<double> RunSummary::last(const char* field) const {
  for (auto epoch = epochs_.rbegin(); epoch != epochs_.rend(); ++epoch) {
    if ((*epoch)[field].is_number()) return (*epoch)[field].get<double>();
  }
  return std::nullopt;
}

}  // namespace lockstep::telemetry
