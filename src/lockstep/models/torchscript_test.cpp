#include "lockstep/models/torchscript.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::models {
namespace {

/// What torch.jit.script writes for Linear -> BatchNorm -> dropout(0.5), with the linear in a submodule "head".
void write_script(const std::filesystem::path& path, const std::string& result = "y") {
  torch::manual_seed(1);
  torch::jit::Module head("Head"), net("Net");
  head.register_parameter("weight", at::randn({3, 4}), false);
  head.register_parameter("bias", at::randn({3}), false);
  head.register_attribute("training", c10::BoolType::get(), true);
  head.define("def forward(self, x: Tensor) -> Tensor:\n  return torch.matmul(x, self.weight.t()) + self.bias\n");
  net.register_module("head", head);
  net.register_parameter("frozen", at::ones({3}), false);
  net.register_parameter("scale", at::ones({3}), false);
  net.register_buffer("running_mean", at::zeros({3}));
  net.register_buffer("running_var", at::ones({3}));
  net.register_attribute("training", c10::BoolType::get(), true);
  net.define(
      "def forward(self, x: Tensor):\n"
      "  y = torch.batch_norm(self.head.forward(x) * self.frozen, self.scale, None, self.running_mean,\n"
      "                       self.running_var, self.training, 0.1, 1e-5, False)\n"
      "  y = torch.dropout(y, 0.5, self.training)\n"
      "  return " +
      result + "\n");
  for (auto parameter : net.parameters()) parameter.requires_grad_(true);
  net.attr("frozen").toTensor().requires_grad_(false);
  net.save(path.string());
}

class TorchScript : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << bytes;
    return folder_.path() / name;
  }
  std::string error_of(const std::filesystem::path& path) const {
    try {
      TorchScriptModel model(path);
    } catch (const DataError& error) {
      return error.what();
    }
    ADD_FAILURE() << path << " was taken";
    return {};
  }

  const TemporaryDirectory folder_{"torchscript"};
  const std::filesystem::path path_ = folder_.path() / "net.pt";
};

TEST_F(TorchScript, ParametersAndBuffersAreThoseThatTheScriptReads) {
  write_script(path_);
  const auto model = make_model(path_.string(), {});
  std::string names;
  for (const auto& entry : model->named_parameters()) {
    names += entry.key() + (entry.value().requires_grad() ? " " : "(fixed) ");
  }
  EXPECT_EQ(names, "frozen(fixed) scale head.weight head.bias ");
  EXPECT_EQ(model->named_buffers().keys(), (std::vector<std::string>{"running_mean", "running_var"}));

  const auto x = at::randn({6, 4});
  model->eval();
  const auto parameters = model->named_parameters();
  const auto before = model->forward(x);
  at::NoGradGuard no_grad;
  // As an arena does it: the values move to other memory.
  auto weight = parameters["head.weight"];
  weight.set_data(weight * 2);
  parameters["head.bias"].mul_(2);
  const auto mean = model->named_buffers()["running_mean"];
  EXPECT_TRUE(at::allclose(model->forward(x), before * 2));
  mean.fill_(1);
  EXPECT_TRUE(at::allclose(model->forward(x), before * 2 - 1, 1e-4, 1e-4));
}

TEST_F(TorchScript, TrainsAndFollowsItsMode) {
  write_script(path_);
  TorchScriptModel model(path_);
  model.train();
  const auto x = at::randn({64, 4});
  for (int step = 0; step < 3; ++step) model.forward(x).pow(2).sum().backward();  // the executor specialises on the way
  EXPECT_TRUE(model.named_parameters()["head.weight"].grad().defined());
  EXPECT_FALSE(model.named_parameters()["frozen"].grad().defined());
  EXPECT_FALSE(at::equal(model.named_buffers()["running_mean"], at::zeros({3})));
  EXPECT_FALSE(at::equal(model.forward(x), model.forward(x))) << "dropout is off in training";
  model.eval();
  EXPECT_FALSE(model.is_training());
  EXPECT_TRUE(at::equal(model.forward(x), model.forward(x))) << "dropout is on in evaluation";
  model.to(at::kDouble);
  EXPECT_EQ(model.forward(x.to(at::kDouble)).scalar_type(), at::kDouble);
}

TEST_F(TorchScript, AnotherResultThanOneTensorIsRefused) {
  write_script(path_, "(y, y)");
  TorchScriptModel model(path_);
  try {
    model.forward(at::randn({2, 4}));
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("net.pt: its forward gives Tuple"), std::string::npos) << error.what();
  }
}

TEST_F(TorchScript, ForeignFilesAreRefusedByPath) {
  for (const char* content : {"", "no archive", "PK\x05\x06"}) {
    EXPECT_NE(error_of(write("foreign.pt", content)).find("foreign.pt"), std::string::npos);
  }
  EXPECT_NE(error_of(folder_.path() / "missing.pt").find("missing.pt"), std::string::npos);
  EXPECT_NE(error_of(folder_.path()).find(folder_.path().string()), std::string::npos);
  // Archives of LibTorch's own, but without a program or without parameters.
  const auto saved = folder_.path() / "saved.pt";
  torch::save(torch::nn::Linear(2, 3), saved.string());
  EXPECT_NE(error_of(saved).find("saved.pt: holds tensors but no program"), std::string::npos) << error_of(saved);
  const auto frozen = folder_.path() / "frozen.pt";
  torch::jit::Module script("Frozen");
  script.define("def forward(self, x: Tensor):\n  return x + 1\n");
  script.save(frozen.string());
  EXPECT_NE(error_of(frozen).find("frozen.pt: holds no parameters that can be trained"), std::string::npos);
}

TEST_F(TorchScript, EveryDamageIsFoundOrHarmless) {
  write_script(path_);
  const std::string whole = read_file(path_);
  TorchScriptModel intact(path_);
  intact.eval();
  const auto x = at::randn({2, 4});
  const auto want = intact.forward(x);
  for (const std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t{100}}) {
    EXPECT_NE(error_of(write("cut.pt", whole.substr(0, size))).find("cut.pt"), std::string::npos);
  }
  int refused = 0, places = 0;
  for (std::size_t at = 0; at < whole.size(); at += 97, ++places) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const auto path = write("damaged.pt", damaged);
    try {
      TorchScriptModel model(path);
      model.eval();
      ASSERT_TRUE(at::equal(model.forward(x), want)) << "byte " << at << " changed the result and went unnoticed";
    } catch (const DataError& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find("damaged.pt"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(refused, 0) << places << " places";
}

}  // namespace
}  // namespace lockstep::models
