// Weights that Python wrote give Python's answers here, and ours there, under torchvision's and Hugging Face's names.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/models/torchscript.h"
#include "lockstep/train/weights.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr models::TokenShape kSmallGpt2{.vocabulary = 61, .positions = 16, .layers = 2, .heads = 3, .width = 24};
constexpr double kTolerance = 1e-5;

/// Runs tests/numerics/python/state_dicts.py.
void run_python(const std::string& arguments) {
  const char* python = std::getenv("LOCKSTEP_PYTHON");
  const char* source = std::getenv("LOCKSTEP_SOURCE_DIR");
  ASSERT_TRUE(python != nullptr && *python != '\0' && source != nullptr)
      << "LOCKSTEP_PYTHON (a Python that has torch) and LOCKSTEP_SOURCE_DIR are not set, which ctest does; leave this "
         "test out with scripts/test.sh --no-python-tests";
  const std::string command =
      std::string("'") + python + "' '" + source + "/tests/numerics/python/state_dicts.py' " + arguments;
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

std::shared_ptr<models::Model> make(const std::string& name) {
  torch::manual_seed(5);
  if (name == "gpt2") return models::make_token_model(name, kSmallGpt2);
  const std::int64_t size = name == "resnet18" ? 32 : 96;
  return models::make_model(name, {3, size, size, 7});
}

at::Tensor load_one(const fs::path& path) {
  return train::load_tensors(path).at(0).tensor;
}

void expect_answer(models::Model& model, const fs::path& folder, const std::string& what) {
  model.eval();
  at::NoGradGuard no_grad;
  const auto got = model.forward(load_one(folder / "x.safetensors")), want = load_one(folder / "y.safetensors");
  EXPECT_TRUE(at::allclose(got, want, kTolerance, kTolerance))
      << what << ": differs by up to " << (got - want).abs().max().item<double>();
}

class StateDict : public testing::TestWithParam<const char*> {
 protected:
  const TemporaryDirectory folder_{"state_dict"};
};

TEST_P(StateDict, PythonsGivesPythonsAnswersHere) {
  const std::string name = GetParam();
  ASSERT_NO_FATAL_FAILURE(run_python("write " + name + " '" + folder_.path().string() + "'"));
  for (const char* form : {"model", "bare", "untied", "old"}) {
    const auto path = folder_.path() / (std::string(form) + ".safetensors");
    if (name != "gpt2" && std::string(form) != "model") {
      EXPECT_FALSE(fs::exists(path));
      continue;
    }
    const auto model = make(name);
    train::load_weights(*model, path);
    expect_answer(*model, folder_.path(), name + " " + form);
  }
}

TEST_P(StateDict, OursGivesOurAnswersInPython) {
  const std::string name = GetParam();
  const auto model = make(name);
  at::NoGradGuard no_grad;
  const auto x = name == "gpt2" ? at::randint(0, kSmallGpt2.vocabulary, {2, 11}, at::kLong)
                                : at::randn({4, 3, name == "resnet18" ? 32 : 96, name == "resnet18" ? 32 : 96});
  model->forward(x + 1 - 1);  // moves the running statistics
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() == 1) parameter.add_(at::randn_like(parameter) * 0.1);
  }
  model->eval();
  const auto folder = folder_.path();
  train::save_tensors(folder / "x.safetensors", {{"x", x}});
  train::save_tensors(folder / "ours_y.safetensors", {{"y", model->forward(x)}});
  std::vector<optim::NamedTensor> state;
  for (const auto& [key, tensor] : model->state_dict()) state.push_back({key, tensor});
  train::save_tensors(folder / "ours.safetensors", state);
  run_python("check " + name + " '" + folder.string() + "'");
}

INSTANTIATE_TEST_SUITE_P(Models, StateDict, testing::Values("resnet18", "resnet50", "gpt2"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(StateDictOfAnotherModel, IsRefusedWithPathAndTensor) {
  const TemporaryDirectory folder("state_dict");
  const auto path = folder.path() / "cnn.safetensors";
  train::save_tensors(path, train::state_tensors(*models::make_model("cnn", {3, 32, 32, 10})));
  const auto model = make("gpt2");
  try {
    train::load_weights(*model, path);
    FAIL() << "no error";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("transformer."), std::string::npos) << error.what();
  }
}

TEST(PythonsTorchScript, AnswersAndTrainsHere) {
  const TemporaryDirectory folder("torchscript");
  ASSERT_NO_FATAL_FAILURE(run_python("script '" + folder.path().string() + "'"));
  const auto path = folder.path() / "scripted.pt";
  const auto model = models::make_model(path.string(), {});
  std::string names;
  for (const auto& entry : train::state_tensors(*model)) names += entry.name + " ";
  EXPECT_EQ(names,
            "0.bias 0.weight 1.bias 1.num_batches_tracked 1.running_mean 1.running_var 1.weight 6.bias 6.weight ");
  expect_answer(*model, folder.path(), "scripted");
  model->train();
  const auto x = load_one(folder.path() / "x.safetensors");
  model->forward(x).sum().backward();
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().defined());
  EXPECT_EQ(model->named_buffers()["1.num_batches_tracked"].item<std::int64_t>(), 2);
  try {
    models::TorchScriptModel state_dict(folder.path() / "state_dict.pt");
    FAIL() << "a state dict is no program";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("state_dict.pt: is not a TorchScript file"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep
