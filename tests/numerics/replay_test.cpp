// Replays training runs of the Python referee (tests/numerics/python/numerics.py): same initial weights, same batches;
// the weights at the end, every loss, the first step's gradients and the gradient norms must agree within the case's
// tolerance. Ranks are real processes over shared memory.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "dist/run_ranks.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/models/loss.h"
#include "lockstep/models/model.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/engine.h"
#include "lockstep/train/weights.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

Tensors read_tensors(const fs::path& path) {
  Tensors tensors;
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
                                   .weight_decay = weight_decay};
  if (run.at("optimizer") == "Adam") return std::make_unique<optim::Adam>(parameters, options);
  return std::make_unique<optim::AdamW>(parameters, options);
}

class Replay {
 public:
  Replay(fs::path folder, bool fuse, comm::Communicator& communicator)
      : folder_(std::move(folder)),
        run_(nlohmann::json::parse(read_file(folder_ / "case.json"))),
        batches_(read_tensors(folder_ / "batches.safetensors")),
        rank_(communicator.rank()) {
    const bool is_cnn = run_.at("model") == "cnn";
    model_ = models::make_model(run_.at("model"),
                                is_cnn ? models::ModelShape{3, 32, 32, 10} : models::ModelShape{1, 28, 28, 10},
                                {.fuse = fuse});
    train::copy_by_name(train::state_tensors(*model_), train::load_tensors(folder_ / "initial.safetensors"), "initial");
    optimizer_ = make_optimizer(run_, model_->parameters());
    strategy_ = communicator.size() == 1 ? parallel::make_single() : parallel::make_ddp(communicator, {});
    engine_ = std::make_unique<train::Engine>(*model_, *optimizer_, *strategy_, options());
  }

  void run() {
    const auto& steps = run_.at("steps");
    for (std::size_t step = 0; step < steps.size(); ++step) {
      replay_step(step, steps.at(step));
      if (::testing::Test::HasFailure()) return;
    }
    compare(train::state_tensors(*model_), read_tensors(folder_ / "final.safetensors"), "final");
  }

 private:
  train::EngineOptions options() const {
    train::EngineOptions options{.average = train::Average::kRanks};
    if (run_.at("clip") > 0) options.clip_norm = run_.at("clip");
    optim::Schedule schedule{.base_lr = run_.at("settings").at("lr")};
    if (run_.at("warmup") > 0) {
      schedule.base_lr *= run_.at("world").get<double>();
      schedule.warmup_steps = run_.at("warmup");
    }
    options.schedule = schedule;
    return options;
  }

  void replay_step(std::size_t step, const nlohmann::json& expected) {
    const int accumulate = run_.at("accumulate");
    engine_->set_gradient_observer([&](double scale) {
      if (step == 0) compare_first_gradients(scale);
    });
    for (int micro = 0; micro < accumulate; ++micro) {
      const std::string name = text("step", step, ".rank", rank_, ".micro", micro);
      const auto& input = batches_.at(name + ".input");
      const auto& label = batches_.at(name + ".label");
      double own_loss = 0;
      const auto result = engine_->micro_step(label.size(0), micro + 1 == accumulate, [&] {
        auto loss = models::cross_entropy(model_->forward(input), label);
        own_loss = loss.item<double>();
        return loss;
      });
      EXPECT_NEAR(own_loss,
                  expected.at("losses").at(static_cast<std::size_t>(rank_)).at(static_cast<std::size_t>(micro)), 1e-5)
          << name;
      if (!result.updated) continue;
      EXPECT_DOUBLE_EQ(result.lr, expected.at("lr")) << "step " << step;
      if (expected.contains("grad_norm")) {
        EXPECT_NEAR(engine_->last_gradient_norm().value(), expected.at("grad_norm"), 1e-5) << "step " << step;
      }
    }
  }

  void compare_first_gradients(double scale) {
    std::vector<optim::NamedTensor> gradients;
    for (const auto& segment : engine_->arena().segments()) {
      gradients.push_back({segment.name, segment.parameter.grad() * scale});
    }
    compare(gradients, read_tensors(folder_ / "gradients.safetensors"), "first gradients");
  }

  void compare(const std::vector<optim::NamedTensor>& ours, const Tensors& expected, std::string_view what) {
    ASSERT_EQ(ours.size(), expected.size()) << what;
    const double tolerance = run_.at("tolerance");
    for (const auto& entry : ours) {
      ASSERT_TRUE(expected.contains(entry.name)) << what << " " << entry.name;
      EXPECT_LE((entry.tensor - expected.at(entry.name)).abs().max().item<double>(), tolerance)
          << what << " " << entry.name << " on rank " << rank_;
    }
  }

  const fs::path folder_;
  const nlohmann::json run_;
  const Tensors batches_;
  const int rank_;
  std::shared_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<parallel::Strategy> strategy_;
  std::unique_ptr<train::Engine> engine_;
};

struct CaseParameter {
  std::string name;
  int world;
};

const std::vector<CaseParameter> kCases{{"cnn-single", 1},
                                        {"mlp-single", 1},
                                        {"cnn-ddp2", 2},
                                        {"cnn-ddp4", 4},
                                        {"mlp-ddp2", 2},
                                        {"mlp-ddp4", 4},
                                        {"mlp-ddp2-accum4", 2},
                                        {"cnn-ddp4-accum2", 4},
                                        {"cnn-ddp2-clip", 2},
                                        {"mlp-ddp4-accum2-clip", 4},
                                        {"mlp-ddp2-momentum", 2},
                                        {"mlp-ddp2-dampening", 2},
                                        {"mlp-ddp2-nesterov", 2},
                                        {"mlp-ddp2-adam", 2},
                                        {"mlp-ddp2-adamw", 2},
                                        {"cnn-ddp4-warmup", 4},
                                        {"mlp-ddp2-sampler-pad", 2},
                                        {"mlp-ddp2-sampler-drop", 2},
                                        {"mlp-ddp4-sampler-pad", 4},
                                        {"mlp-ddp4-sampler-drop", 4}};

class NumericsReplay : public ::testing::TestWithParam<CaseParameter> {
 protected:
  // The case, as Python computes it on this machine now: last bits depend on the machine. Ranks use the caller's
  // folder.
  static fs::path write_case(const std::string& name) {
    static const TemporaryDirectory folder("lockstep-numerics");
    if (const char* given = std::getenv("LOCKSTEP_TEST_CASE_FOLDER")) return given;
    const char* python = std::getenv("LOCKSTEP_PYTHON");
    const fs::path target = folder.path() / name;
    const std::string command =
        text("'", python, "' '", std::getenv("LOCKSTEP_SOURCE_DIR"), "/tests/numerics/python/numerics.py' write ", name,
             " '", target.string(), "' >&2");
    if (std::system(command.c_str()) != 0) throw std::runtime_error("the referee failed: " + command);
    return target;
  }
};

TEST_P(NumericsReplay, EqualsPython) {
  const char* python = std::getenv("LOCKSTEP_PYTHON");
  ASSERT_TRUE(python != nullptr && *python != '\0')
      << "no Python with torch was found, which these tests compare with: run scripts/setup.sh, or scripts/test.sh "
         "--no-python-tests to leave them out";
  const auto& parameter = GetParam();
  const fs::path folder = write_case(parameter.name);
  for (const bool fuse : {true, false}) {
    if (parameter.world == 1) {
      const auto communicator = comm::make_single_communicator();
      Replay(folder, fuse, *communicator).run();
      continue;
    }
    lockstep::testing::RunRanksOptions options;
    options.environment = {{"LOCKSTEP_TEST_CASE_FOLDER", folder.string()}, {"OMP_NUM_THREADS", "1"}};
    lockstep::testing::run_ranks(
        parameter.world,
        [&](lockstep::testing::RankContext& context) {
          const auto communicator =
              comm::make_shm_communicator(context.store, context.rank, context.world, {.name = "replay"});
          Replay(folder, fuse, *communicator).run();
        },
        options);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, NumericsReplay, ::testing::ValuesIn(kCases), [](const auto& replay) {
  std::string name = replay.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace lockstep
