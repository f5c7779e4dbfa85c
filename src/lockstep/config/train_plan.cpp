#include "lockstep/config/train_plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::config {

namespace {

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// Calls visit(name, field) for every field: writing and reading cannot get out of step.
template <typename Plan, typename Visit>
void for_each_field(Plan& plan, const Visit& visit) {
  visit("model", plan.model);
  visit("data", plan.data);
  visit("strategy", plan.strategy);
  visit("nproc", plan.nproc);
  visit("device", plan.device);
  visit("device_reason", plan.device_reason);
  visit("devices", plan.devices);
  visit("batch_size", plan.batch_size);
  visit("accumulate", plan.accumulate);
  visit("epochs", plan.epochs);
  visit("max_steps", plan.max_steps);
  visit("optimizer", plan.optimizer);
  visit("lr", plan.lr);
  visit("momentum", plan.momentum);
  visit("nesterov", plan.nesterov);
  visit("weight_decay", plan.weight_decay);
  visit("scale_lr", plan.scale_lr);
  visit("warmup_epochs", plan.warmup_epochs);
  visit("schedule", plan.schedule);
  visit("clip_norm", plan.clip_norm);
  visit("precision", plan.precision);
  visit("sync_bn", plan.sync_bn);
  visit("average", plan.average);
  visit("fuse", plan.fuse);
  visit("deterministic", plan.deterministic);
  visit("strict_nan", plan.strict_nan);
  visit("seed", plan.seed);
  visit("drop_last", plan.drop_last);
  visit("workers", plan.workers);
  visit("run_dir", plan.run_dir);
  visit("save_every", plan.save_every);
  visit("save_steps", plan.save_steps);
  visit("keep", plan.keep);
  visit("resume", plan.resume);
  visit("log_every", plan.log_every);
  visit("eval_every", plan.eval_every);
  visit("stop_after_ms", plan.stop_after);
  visit("init_from", plan.init_from);
  visit("dump_final", plan.dump_final);
  visit("price_per_hour", plan.price_per_hour);
  visit("currency", plan.currency);
}

template <typename Field>
nlohmann::json field_to_json(const Field& field) {
  if constexpr (IsOptional<Field>::value) {
    return field ? field_to_json(*field) : nlohmann::json(nullptr);
  } else if constexpr (std::is_same_v<Field, std::filesystem::path>) {
    return field.string();
  } else if constexpr (std::is_same_v<Field, std::chrono::milliseconds>) {
    return field.count();
  } else {
    return field;
  }
}

template <typename Field>
bool type_fits(const nlohmann::json& json) {
  if constexpr (std::is_same_v<Field, bool>) {
    return json.is_boolean();
  } else if constexpr (std::is_floating_point_v<Field>) {
    return json.is_number();
  } else if constexpr (std::is_unsigned_v<Field>) {
    return json.is_number_unsigned();
  } else if constexpr (std::is_integral_v<Field> || std::is_same_v<Field, std::chrono::milliseconds>) {
    return json.is_number_integer();
  } else if constexpr (std::is_same_v<Field, std::vector<int>>) {
    return json.is_array() &&
           std::all_of(json.begin(), json.end(), [](const auto& x) { return x.is_number_integer(); });
  } else {
    return json.is_string();
  }
}

template <typename Field>
void field_from_json(const nlohmann::json& json, const char* name, Field& field) {
  if constexpr (IsOptional<Field>::value) {
    field.reset();
    if (json.is_null()) return;
    field_from_json(json, name, field.emplace());
  } else if (!type_fits<Field>(json)) {
    throw ConfigError(text("plan.json: the field \"", name, "\" has the wrong type: ", json.dump()));
  } else if constexpr (std::is_same_v<Field, std::filesystem::path>) {
    field = json.get<std::string>();
  } else if constexpr (std::is_same_v<Field, std::chrono::milliseconds>) {
    field = std::chrono::milliseconds(json.get<std::int64_t>());
  } else {
    field = json.get<Field>();
  }
}

}  // namespace

double TrainPlan::scaled_lr() const {
  constexpr double kBaseBatch = 256;
  const double ratio = static_cast<double>(global_batch()) / kBaseBatch;
  if (scale_lr == "linear") return lr * ratio;
  if (scale_lr == "sqrt") return lr * std::sqrt(ratio);
  return lr;
}

void to_json(nlohmann::json& json, const TrainPlan& plan) {
  json = nlohmann::json::object();
  for_each_field(plan, [&](const char* name, const auto& field) { json[name] = field_to_json(field); });
}

TrainPlan train_plan_from_json(const nlohmann::json& json) {
  if (!json.is_object()) throw ConfigError("plan.json: expected a JSON object");
  TrainPlan plan;
  for_each_field(plan, [&](const char* name, auto& field) {
    if (!json.contains(name)) throw ConfigError(text("plan.json: the field \"", name, "\" is missing"));
    field_from_json(json[name], name, field);
  });
  return plan;
}

}  // namespace lockstep::config
