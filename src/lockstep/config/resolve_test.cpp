#include "lockstep/config/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/config/command_specs.h"

namespace lockstep::config {
namespace {

using Words = std::vector<std::string>;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const Machine kNoGpu{.usable_cpus = 6, .why_no_gpu = "no NVIDIA driver"};
const Machine kOneGpu{.usable_cpus = 6, .gpus_present = 8, .gpus_visible = 1, .gpu_limit = "CUDA_VISIBLE_DEVICES=3"};
const Machine kFourGpus{.usable_cpus = 6, .gpus_present = 4, .gpus_visible = 4};

TrainRequest train(const Words& args, const Machine& machine = kNoGpu) {
  return resolve_train(parse_flags(command_spec("train"), args), machine);
}

std::string error_of(const Words& args, const Machine& machine = kNoGpu) {
  try {
    train(args, machine);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "no error";
}

TEST(Resolve, DefaultsAreThoseOfTheManual) {
  const TrainPlan plan = train({}).plan;
  EXPECT_EQ(plan.strategy, "single");
  EXPECT_EQ(plan.nproc, 1);
  EXPECT_EQ(plan.device, "cpu");
  EXPECT_EQ(plan.optimizer, "sgd");
  EXPECT_EQ(plan.lr, 0.01);
  EXPECT_EQ(plan.scale_lr, "none");
  EXPECT_EQ(plan.epochs, 5);
  EXPECT_EQ(plan.batch_size, 32);
  EXPECT_EQ(plan.eval_every, 1);
  EXPECT_EQ(train({}).resume, "none");
}

TEST(Resolve, SeveralProcessesMakeTheStrategyDdp) {
  const TrainRequest request = train({"--nproc", "2", "--batch-size", "8", "--accumulate", "3"});
  EXPECT_EQ(request.plan.strategy, "ddp");
  EXPECT_EQ(request.plan.global_batch(), 48);
  EXPECT_EQ(request.origins.at("nproc"), "flag");
  EXPECT_THAT(request.origins.at("strategy"), HasSubstr("--nproc"));
  EXPECT_EQ(train({"--nproc", "auto"}).plan.nproc, 6);
  EXPECT_EQ(train({"--nproc", "auto", "--strategy", "single"}).plan.nproc, 1);
  EXPECT_EQ(train({"--nproc", "1", "--strategy", "ddp"}).plan.strategy, "ddp");
  EXPECT_THAT(error_of({"--nproc", "4", "--strategy", "single"}),
              StartsWith("--strategy single trains on one device, but --nproc is 4"));
}

TEST(Resolve, AutoTakesGpusWhileThereAreEnough) {
  EXPECT_EQ(train({}, kFourGpus).plan.device, "cuda");
  EXPECT_THAT(train({}, kFourGpus).plan.devices, ElementsAre(0));
  EXPECT_EQ(train({"--device", "cpu"}, kFourGpus).plan.device, "cpu");
  EXPECT_EQ(train({"--nproc", "2"}, kFourGpus).plan.device, "cuda");
  EXPECT_THAT(train({"--nproc", "2"}, kFourGpus).plan.devices, ElementsAre(0, 1));
  EXPECT_EQ(train({"--nproc", "2"}, kFourGpus).plan.strategy, "ddp");
  EXPECT_THAT(train({"--nproc", "auto"}, kFourGpus).plan.devices, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(train({"--devices", "3,1"}, kFourGpus).plan.devices, ElementsAre(3, 1));
  const TrainRequest too_many = train({"--nproc", "5"}, kFourGpus);
  EXPECT_EQ(too_many.plan.device, "cpu");
  EXPECT_THAT(too_many.notes, ElementsAre(HasSubstr("since 4 GPUs are visible")));
  EXPECT_EQ(train({}).plan.device_reason, "no usable GPU: no NVIDIA driver");
  EXPECT_THAT(train({"--devices", "2"}, kFourGpus).plan.devices, ElementsAre(2));
}

TEST(Resolve, BR057_MoreProcessesThanVisibleGpusNamesBothNumbersAndTheVariable) {
  EXPECT_THAT(error_of({"--device", "cuda", "--nproc", "2"}, kOneGpu),
              StartsWith("--nproc 2 with --device cuda, but only 1 GPU is visible (CUDA_VISIBLE_DEVICES=3, of 8 in the "
                         "machine)"));
  EXPECT_THAT(error_of({"--device", "cuda", "--nproc", "5"}, kFourGpus), HasSubstr("only 4 GPUs are visible"));
  EXPECT_THAT(error_of({"--devices", "4"}, kFourGpus), HasSubstr("there is no GPU 4: 4 GPUs are visible"));
  EXPECT_THAT(error_of({"--devices", "1", "--nproc", "2"}, kFourGpus),
              StartsWith("--devices names 1 GPU but --nproc is 2"));
  EXPECT_THAT(error_of({"--devices", "0", "--device", "cpu"}, kFourGpus),
              StartsWith("--devices chooses GPUs, but --device is cpu"));
  EXPECT_THAT(error_of({"--device", "cuda"}), StartsWith("--device cuda: there is no usable GPU: no NVIDIA driver"));
}

TEST(Resolve, FlagsThatContradictEachOtherAreRefused) {
  EXPECT_THAT(error_of({"--optimizer", "adam", "--momentum", "0.9"}), HasSubstr("momentum belongs to sgd"));
  EXPECT_THAT(error_of({"--nesterov"}), HasSubstr("--nesterov needs"));
  EXPECT_THAT(error_of({"--precision", "tf32"}), StartsWith("--precision tf32 needs --device cuda"));
  EXPECT_THAT(error_of({"--overwrite", "--resume", "auto"}), HasSubstr("contradict each other"));
  EXPECT_THAT(error_of({"--init-from", "/nowhere/w.safetensors"}), HasSubstr("does not exist"));
  EXPECT_THAT(error_of({"--dump-final", "/nowhere/w.safetensors"}), HasSubstr("the folder /nowhere does not exist"));
}

TEST(Resolve, CompareRunsAllRowsOnTheSameKindOfDevice) {
  const auto rows = resolve_compare(parse_flags(command_spec("compare"), {}), kNoGpu);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].plan.strategy, "single");
  EXPECT_EQ(rows[0].plan.nproc, 1);
  EXPECT_EQ(rows[1].plan.strategy, "dp");
  EXPECT_EQ(rows[1].plan.nproc, 2);
  EXPECT_EQ(rows[2].plan.nproc, 2);
  const auto on_gpu = resolve_compare(parse_flags(command_spec("compare"), {}), kFourGpus);
  for (const auto& row : on_gpu) EXPECT_EQ(row.plan.device, "cuda");
  EXPECT_EQ(on_gpu[0].plan.nproc, 1);
  EXPECT_THAT(on_gpu[0].plan.devices, ElementsAre(0));
  EXPECT_EQ(on_gpu[1].plan.nproc, 4);
  EXPECT_EQ(on_gpu[2].plan.nproc, 4);
  for (const auto& row : resolve_compare(parse_flags(command_spec("compare"), {"--nproc", "5"}), kFourGpus)) {
    EXPECT_EQ(row.plan.device, "cpu");
  }
}

TEST(TrainPlan, ComesBackFromJsonAsItWas) {
  TrainPlan plan = train({"--nproc", "2", "--lr", "0.1", "--max-steps", "9", "--stop-after", "90s", "--clip-norm",
                          "0.5", "--price-per-hour", "0.6", "--seed", "9000000000000000"})
                       .plan;
  plan.run_dir = "runs/x";
  const nlohmann::json json = plan;
  const nlohmann::json again = train_plan_from_json(nlohmann::json::parse(json.dump()));
  EXPECT_EQ(json, again);
  EXPECT_EQ(train_plan_from_json(json).seed, 9000000000000000u);
  EXPECT_EQ(train_plan_from_json(json).stop_after, std::chrono::seconds(90));
}

TEST(TrainPlan, NamesTheFieldThatIsMissingOrWrong) {
  const nlohmann::json good = TrainPlan{};
  nlohmann::json missing = good;
  missing.erase("lr");
  EXPECT_THAT([&] { train_plan_from_json(missing); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("\"lr\" is missing")));
  for (const auto& [name, value] : good.items()) {
    nlohmann::json wrong = good;
    wrong[name] = nlohmann::json::object();
    EXPECT_THAT([&] { train_plan_from_json(wrong); },
                testing::ThrowsMessage<ConfigError>(HasSubstr("\"" + name + "\"")));
  }
  EXPECT_THROW(train_plan_from_json(nlohmann::json::array()), ConfigError);
}

TEST(TrainPlan, ScalesTheRateFromABaseBatchOf256) {
  TrainPlan plan;
  plan.lr = 0.01;
  plan.batch_size = 128;
  plan.nproc = 4;
  EXPECT_EQ(plan.scaled_lr(), 0.01);
  plan.scale_lr = "linear";
  EXPECT_DOUBLE_EQ(plan.scaled_lr(), 0.02);
  plan.scale_lr = "sqrt";
  EXPECT_DOUBLE_EQ(plan.scaled_lr(), 0.01 * std::sqrt(2.0));
}

TEST(PlanDocument, HoldsPlanOriginsAndWhatIsAdded) {
  const TrainRequest request = train({"--lr", "0.1"});
  const auto document = nlohmann::json::parse(plan_document(request, {{"version", "1.2.3"}}));
  EXPECT_EQ(document["schema"], "lockstep.plan/1");
  EXPECT_EQ(document["origins"]["lr"], "flag");
  EXPECT_EQ(document["origins"]["epochs"], "default");
  EXPECT_EQ(document["version"], "1.2.3");
  EXPECT_EQ(train_plan_from_json(document).lr, 0.1);
  EXPECT_THAT(plan_table(request, true), HasSubstr("lr      0.1"));
  EXPECT_THAT(plan_table(request, true), testing::Not(HasSubstr("epochs")));
  EXPECT_THAT(plan_table(request, false), HasSubstr("epochs"));
}

}  // namespace
}  // namespace lockstep::config
