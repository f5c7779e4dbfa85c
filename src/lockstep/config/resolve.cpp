#include "lockstep/config/resolve.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/table.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/devices.h"

namespace lockstep::config {

namespace fs = std::filesystem;

namespace {

std::optional<long long> optional_integer(const FlagValues& values, std::string_view name) {
  return values.has_value(name) ? std::optional(values.integer(name)) : std::nullopt;
}

std::optional<double> optional_real(const FlagValues& values, std::string_view name) {
  return values.has_value(name) ? std::optional(values.real(name)) : std::nullopt;
}

std::optional<fs::path> optional_path(const FlagValues& values, std::string_view name) {
  return values.given(name) ? std::optional<fs::path>(values.text(name)) : std::nullopt;
}

// What the ranks read from plan.json has to survive JSON. The run folder comes to them another way.
void check_encoding(const FlagValues& values) {
  for (const char* name : {"model", "data", "init-from", "dump-final", "resume", "currency"}) {
    if (values.spec().find(name) == nullptr || !values.has_value(name)) continue;
    try {
      [[maybe_unused]] const std::string line = nlohmann::json(values.text(name)).dump();
    } catch (const nlohmann::json::exception&) {
      throw ConfigError(text(values.place(name), ": is not valid UTF-8"), "a link with a plain name leads there too");
    }
  }
}

void take_what_to_train(TrainPlan& plan, const FlagValues& values) {
  plan.model = values.text("model");
  if (plan.model.ends_with(".pt") && !fs::is_regular_file(plan.model)) {
    throw ConfigError(text("--model ", plan.model, fs::exists(plan.model) ? ": is not a file" : ": does not exist"),
                      "a TorchScript file is written by torch.jit.script(model).save(path)");
  }
  plan.data = values.text("data");
  plan.epochs = values.integer("epochs");
  plan.max_steps = optional_integer(values, "max-steps");
  plan.batch_size = values.integer("batch-size");
  plan.accumulate = static_cast<int>(values.integer("accumulate"));
  plan.drop_last = values.enabled("drop-last");
  plan.seed = static_cast<std::uint64_t>(values.integer("seed"));
  plan.workers = static_cast<int>(values.integer("workers"));
  plan.init_from = optional_path(values, "init-from");
}

void take_how_to_learn(TrainPlan& plan, const FlagValues& values) {
  plan.optimizer = values.text("optimizer");
  plan.lr = values.real("lr");
  plan.momentum = values.real("momentum");
  plan.nesterov = values.enabled("nesterov");
  plan.weight_decay = values.real("weight-decay");
  plan.scale_lr = values.text("scale-lr");
  plan.warmup_epochs = values.real("warmup-epochs");
  plan.schedule = values.text("schedule");
  plan.clip_norm = optional_real(values, "clip-norm");
  plan.average = values.text("average");
  plan.precision = values.text("precision");
  plan.sync_bn = values.enabled("sync-bn");
  plan.fuse = values.text("fuse");
  plan.deterministic = values.enabled("deterministic");
  plan.strict_nan = values.enabled("strict-nan");
  plan.eval_every = values.integer("eval-every");
}

void take_run(TrainPlan& plan, const FlagValues& values) {
  plan.save_every = values.integer("save-every");
  plan.save_steps = values.integer("save-steps");
  plan.keep = values.integer("keep");
  plan.log_every = values.integer("log-every");
  if (values.given("stop-after")) plan.stop_after = values.duration("stop-after");
  plan.price_per_hour = optional_real(values, "price-per-hour");
  plan.currency = values.text("currency");
}

void check_combinations(const TrainPlan& plan, const FlagValues& values) {
  if (plan.optimizer != "sgd" && plan.momentum != 0) {
    throw ConfigError(
        text("--momentum ", plan.momentum, " with --optimizer ", plan.optimizer, ": momentum belongs to sgd"));
  }
  if (plan.nesterov && (plan.optimizer != "sgd" || plan.momentum == 0)) {
    throw ConfigError("--nesterov needs --optimizer sgd and a --momentum above 0");
  }
  if (plan.precision == "tf32" && plan.device != "cuda") {
    throw ConfigError("--precision tf32 needs --device cuda; this run is on the CPU",
                      plan.device_reason.empty() ? "" : text("the CPU was taken because ", plan.device_reason));
  }
  const bool can_resume = values.spec().find("resume") != nullptr && values.text("resume") != "none";
  if (values.enabled("overwrite") && can_resume) {
    throw ConfigError(text("--overwrite and --resume ", values.text("resume"), " contradict each other"));
  }
}

// A missing input, or an output that cannot be written after hours of training, is told at once.
void check_files(const TrainPlan& plan) {
  std::error_code ignored;
  if (plan.init_from && !fs::is_regular_file(*plan.init_from, ignored)) {
    throw DataError(text("--init-from ", plan.init_from->string(), ": ",
                         fs::exists(*plan.init_from, ignored) ? "is not a regular file" : "does not exist"));
  }
  if (!plan.dump_final) return;
  const fs::path folder = plan.dump_final->has_parent_path() ? plan.dump_final->parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored)) {
    throw ConfigError(
        text("--dump-final ", plan.dump_final->string(), ": the folder ", folder.string(), " does not exist"));
  }
  if (fs::is_directory(*plan.dump_final, ignored)) {
    throw ConfigError(text("--dump-final ", plan.dump_final->string(), ": is a folder, expected a file"));
  }
}

TrainRequest common_request(const FlagValues& values) {
  check_encoding(values);
  TrainRequest request;
  take_what_to_train(request.plan, values);
  take_how_to_learn(request.plan, values);
  take_run(request.plan, values);
  request.run_dir = optional_path(values, "run-dir");
  request.overwrite = values.enabled("overwrite");
  if (values.given("grace")) request.grace = values.duration("grace");
  request.progress = values.text("progress");
  request.json = values.enabled("json");
  for (const auto& flag : values.spec().flags) request.origins[flag.name] = values.origin(flag.name);
  return request;
}

void take_devices(TrainRequest& request, const DeviceChoice& choice, const FlagValues& values) {
  request.plan.device = choice.device;
  request.plan.device_reason = choice.reason;
  request.plan.devices = choice.devices;
  if (!choice.reason.empty()) request.origins["device"] = text("auto: ", choice.reason);
  if (values.given("nproc") && values.text("nproc") == "auto") request.origins["nproc"] = "auto";
  request.notes = choice.notes;
  const auto precision = values.text("precision");
  if (choice.device == "cpu" && (precision == "fp16" || precision == "bf16")) {
    request.notes.push_back(text("--precision ", precision,
                                 " on the CPU saves no time: most CPUs emulate it, fp16 at a "
                                 "hundredth of fp32's speed"));
  }
}

}  // namespace

TrainRequest resolve_train(const FlagValues& values, const Machine& machine) {
  TrainRequest request = common_request(values);
  TrainPlan& plan = request.plan;
  plan.dump_final = optional_path(values, "dump-final");
  request.resume = values.text("resume");

  const bool single = values.given("strategy") && values.text("strategy") == "single";
  const DeviceChoice choice = choose_devices(values, machine, {.cpu_default = 1, .one_device_only = single});
  if (single && choice.nproc > 1) {
    throw ConfigError(text("--strategy single trains on one device, but --nproc is ", choice.nproc),
                      "use --strategy ddp, or leave --strategy out");
  }
  plan.nproc = choice.nproc;
  take_devices(request, choice, values);
  plan.strategy = values.given("strategy") ? values.text("strategy") : choice.nproc > 1 ? "ddp" : "single";
  if (!values.given("strategy") && choice.nproc > 1) request.origins["strategy"] = "because --nproc is above 1";
  check_combinations(plan, values);
  check_files(plan);
  return request;
}

std::vector<TrainRequest> resolve_compare(const FlagValues& values, const Machine& machine) {
  const TrainRequest common = common_request(values);
  const auto strategies = values.list("strategies");
  const bool single_only = strategies == std::vector<std::string>{"single"};
  const DeviceChoice choice = choose_devices(values, machine, {.cpu_default = 2, .one_device_only = single_only});
  std::vector<TrainRequest> requests;
  for (const auto& strategy : strategies) {
    TrainRequest request = common;
    take_devices(request, choice, values);
    request.plan.strategy = strategy;
    request.plan.nproc = strategy == "single" ? 1 : choice.nproc;
    if (request.plan.devices.size() > 1 && strategy == "single") request.plan.devices = {request.plan.devices.front()};
    check_combinations(request.plan, values);
    check_files(request.plan);
    requests.push_back(std::move(request));
  }
  return requests;
}

namespace {

std::string shown(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "-";
  if (value.is_number_float()) return text(value.get<double>());
  if (!value.is_array()) return value.dump();
  std::vector<std::string> items;
  for (const auto& item : value) items.push_back(item.dump());
  return items.empty() ? "-" : join(items, ",");
}

}  // namespace

std::string plan_table(const TrainRequest& request, bool asked_only) {
  const nlohmann::json plan = request.plan;
  Table table{.columns = {{"flag"}, {"value"}, {"origin"}}, .rows = {}};
  std::vector<std::string> names;
  for (const auto& [name, origin] : request.origins) {
    std::string field = name;
    std::replace(field.begin(), field.end(), '-', '_');
    const bool known = plan.contains(field);
    if (!known && name != "stop-after") continue;
    if (asked_only && origin == "default") continue;
    const std::string value = name == "stop-after" && request.plan.stop_after
                                  ? format_duration(*request.plan.stop_after)
                              : known ? shown(plan[field])
                                      : "-";
    table.rows.push_back({name, value, origin});
  }
  return table.rows.empty() ? "" : table.to_string();
}

std::string plan_document(const TrainRequest& request, const std::map<std::string, std::string>& extra) {
  nlohmann::json document = request.plan;
  document["schema"] = "lockstep.plan/1";
  document["origins"] = request.origins;
  document["scaled_lr"] = request.plan.scaled_lr();
  document["global_batch"] = request.plan.global_batch();
  for (const auto& [key, value] : extra) document[key] = value;
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::config
