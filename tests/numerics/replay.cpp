#include "numerics/replay.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <torch/torch.h>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/models/loss.h"
#include "lockstep/parallel/hook.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/weights.h"

namespace lockstep {

namespace {

std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& path) {
  std::map<std::string, at::Tensor> tensors;
  for (auto& entry : train::load_tensors(path)) tensors.emplace(entry.name, entry.tensor);
  return tensors;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const nlohmann::json& run, std::vector<at::Tensor> parameters) {
  const auto& settings = run.at("settings");
  const double lr = settings.at("lr");
  const double weight_decay = settings.at("weight_decay");
  if (run.at("optimizer") == "SGD") {
    return std::make_unique<optim::SGD>(parameters, optim::SgdOptions{.lr = lr,
                                                                      .momentum = settings.at("momentum"),
                                                                      .dampening = settings.at("dampening"),
                                                                      .weight_decay = weight_decay,
                                                                      .nesterov = settings.at("nesterov")});
  }
  const optim::AdamOptions options{.lr = lr,
                                   .beta1 = settings.at("betas").at(0),
                                   .beta2 = settings.at("betas").at(1),
                                   .eps = settings.at("eps"),
                                   .weight_decay = weight_decay,
                                   .amsgrad = settings.at("amsgrad")};
  if (run.at("optimizer") == "Adam") return std::make_unique<optim::Adam>(parameters, options);
  return std::make_unique<optim::AdamW>(parameters, options);
}

}  // namespace

Replay::Replay(std::filesystem::path folder, const ReplayOptions& options, comm::Communicator& communicator)
    : folder_(std::move(folder)),
      options_(options),
      communicator_(communicator),
      run_(nlohmann::json::parse(read_file(folder_ / "case.json"))),
      batches_(read_tensors(folder_ / "batches.safetensors")),
      model_(make_referee_model(run_.at("model"), options.fuse)) {
  train::copy_by_name(train::state_tensors(*model_.module), train::load_tensors(folder_ / "initial.safetensors"),
                      "initial");
  optimizer_ = make_optimizer(run_, model_.module->parameters());
  strategy_ = make_strategy(options.strategy);
  engine_ = std::make_unique<train::Engine>(*model_.module, *optimizer_, *strategy_, engine_options());
}

std::unique_ptr<parallel::Strategy> Replay::make_strategy(const std::string& name) {
  // Buckets of a few kilobytes, so that several are under way.
  parallel::DdpOptions options{.bucket_bytes = 4096, .first_bucket_bytes = 1024};
  if (run_.at("hook") == "fp16") options.hook = parallel::make_fp16_hook();
  if (run_.at("hook") == "bf16") options.hook = parallel::make_bf16_hook();
  if (name == "single") return parallel::make_single();
  if (name == "zero1") return parallel::make_zero(communicator_, parallel::ZeroStage::kOptimizer, options);
  if (name == "zero2") return parallel::make_zero(communicator_, parallel::ZeroStage::kGradients, options);
  return parallel::make_ddp(communicator_, options);
}

train::EngineOptions Replay::engine_options() {
  train::EngineOptions options{.average = train::Average::kRanks};
  if (run_.at("divide_by") == "world") options.join_divisor = train::JoinDivisor::kWorld;
  if (run_.at("sync_batchnorm")) options.sync_batch_norm = &communicator_;
  if (run_.at("clip") > 0) options.clip_norm = run_.at("clip");
  optim::Schedule schedule{.base_lr = run_.at("settings").at("lr")};
  if (run_.at("warmup") > 0) {
    schedule.base_lr *= run_.at("world").get<double>();
    schedule.warmup_steps = run_.at("warmup");
  }
  options.schedule = schedule;
  return options;
}

bool Replay::has_data(std::size_t step) const {
  return batches_.contains(text("step", step, ".rank", communicator_.rank(), ".micro0.input"));
}

double Replay::run() {
  const auto& steps = run_.at("steps");
  for (std::size_t step = 0; step < steps.size() && has_data(step); ++step) {
    replay_step(step, steps.at(step));
    if (::testing::Test::HasFailure()) return 0;
  }
  if (!run_.at("steps_of_rank").empty()) {
    engine_->join();
    EXPECT_EQ(engine_->num_steps(), static_cast<std::int64_t>(steps.size()));
  }
  return compare(train::state_tensors(*model_.module), read_tensors(folder_ / "final.safetensors"),
                 run_.at("tolerance"), "final");
}

void Replay::replay_step(std::size_t step, const nlohmann::json& expected) {
  const int accumulate = run_.at("accumulate");
  const double tolerance = run_.at("tolerance");
  const auto rank = static_cast<std::size_t>(communicator_.rank());
  engine_->set_gradient_observer([&](double scale, const std::vector<char>& unused) {
    if (step == 0 && options_.strategy.find("zero") == std::string::npos) compare_first_gradients(scale, unused);
  });
  for (int micro = 0; micro < accumulate; ++micro) {
    const std::string name = text("step", step, ".rank", rank, ".micro", micro);
    const auto& input = batches_.at(name + ".input");
    const auto& label = batches_.at(name + ".label");
    const int branch = expected.contains("branch") ? expected.at("branch").at(rank).get<int>() : 0;
    double own_loss = 0;
    const auto result = engine_->micro_step(label.size(0), micro + 1 == accumulate, [&] {
      const auto logits = model_.forward(input, branch);
      auto loss =
          options_.fuse ? models::cross_entropy(logits, label) : torch::nn::functional::cross_entropy(logits, label);
      own_loss = loss.item<double>();
      return loss;
    });
    EXPECT_NEAR(own_loss, expected.at("losses").at(rank).at(static_cast<std::size_t>(micro)), tolerance) << name;
    if (!result.updated) continue;
    EXPECT_DOUBLE_EQ(result.lr, expected.at("lr")) << "step " << step;
    if (expected.contains("grad_norm")) {
      EXPECT_NEAR(engine_->last_gradient_norm().value(), expected.at("grad_norm"), tolerance) << "step " << step;
    }
  }
}

// The referee leaves out a parameter that no rank used.
void Replay::compare_first_gradients(double scale, const std::vector<char>& unused) {
  std::vector<optim::NamedTensor> gradients;
  const auto& segments = engine_->arena().segments();
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (unused.empty() || unused[s] == 0) gradients.push_back({segments[s].name, segments[s].parameter.grad() * scale});
  }
  // The case's tolerance is one of weights. A gradient that went through fp16 or bf16 may be a neighbour there, which
  // moves a weight by lr times as much.
  const double tolerance = run_.at("tolerance");
  const double lr = run_.at("settings").at("lr");
  compare(gradients, read_tensors(folder_ / "gradients.safetensors"),
          run_.at("hook") == "" ? tolerance : tolerance / lr, "first gradients");
}

double Replay::compare(const std::vector<optim::NamedTensor>& ours, const Tensors& expected, double tolerance,
                       std::string_view what) {
  EXPECT_EQ(ours.size(), expected.size()) << what;
  double largest = 0;
  for (const auto& entry : ours) {
    const auto found = expected.find(entry.name);
    if (found == expected.end()) {
      ADD_FAILURE() << what << " " << entry.name << " is unknown to the referee";
      continue;
    }
    const double difference = (entry.tensor.to(at::kDouble) - found->second.to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << what << " " << entry.name << " on rank " << communicator_.rank();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace lockstep
