#include "lockstep/train/optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/host/memory.h"
#include "lockstep/train/weights.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;

// Parameters of three types; the last one never gets a gradient.
struct Rig {
  at::Tensor full = at::randn({5, 3}).requires_grad_();
  at::Tensor brain = at::randn({7}).to(at::kBFloat16).requires_grad_();
  at::Tensor half = at::randn({4, 2}).to(at::kHalf).requires_grad_();
  at::Tensor idle = at::randn({6}).requires_grad_();
  optim::ParameterArena arena{{{"full", full}, {"brain", brain}, {"half", half}, {"idle", idle}}};
  optim::Adam optimizer{{full, brain, half, idle}, {.lr = 0.01, .amsgrad = true}};
  std::unique_ptr<comm::Communicator> alone = comm::make_single_communicator();

  Rig() { optimizer.bind(arena); }

  void step(int number) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(number));
    std::vector<char> unused;
    for (const auto& segment : arena.segments()) {
      unused.push_back(segment.name == "idle" ? 1 : 0);
      if (unused.back() != 0) continue;
      segment.parameter.mutable_grad().copy_(
          at::randn(segment.parameter.sizes(), generator, at::TensorOptions(at::kFloat)));
    }
    optimizer.step(0.01, 1, unused);
  }
  std::vector<optim::NamedTensor> state() { return gather_optimizer_state(optimizer, arena, *alone); }
  std::vector<optim::NamedTensor> values() {
    return {{"full", full}, {"brain", brain}, {"half", half}, {"idle", idle}};
  }
};

void expect_same_bits(const std::vector<optim::NamedTensor>& left, const std::vector<optim::NamedTensor>& right) {
  ASSERT_EQ(left.size(), right.size());
  std::map<std::string, at::Tensor> by_name;
  for (const auto& entry : right) by_name.emplace(entry.name, entry.tensor);
  for (const auto& entry : left) {
    const auto& other = by_name.at(entry.name);
    EXPECT_EQ(entry.tensor.scalar_type(), other.scalar_type()) << entry.name;
    EXPECT_TRUE(at::equal(entry.tensor, other)) << entry.name;
  }
}

TEST(OptimizerState, BR007_TypesBitsAndCountersSurviveTheFileAndTenStepsAfterItAreEqual) {
  const TemporaryDirectory folder("lockstep-optimizer-state");
  Rig saved;
  for (int number = 0; number < 5; ++number) saved.step(number);
  auto steps = saved.optimizer.parameter_steps();
  for (auto& step : steps) step += step > 0 ? (std::int64_t{1} << 24) + 1 : 0;  // no float holds such a counter
  saved.optimizer.set_parameter_steps(steps);
  save_tensors(folder.path() / "state.safetensors", saved.state());
  save_tensors(folder.path() / "values.safetensors", saved.values());

  Rig loaded;
  copy_by_name(loaded.values(), load_tensors(folder.path() / "values.safetensors"), "values");
  load_optimizer_state(loaded.optimizer, loaded.arena, load_tensors(folder.path() / "state.safetensors"), "state");
  expect_same_bits(saved.state(), loaded.state());
  EXPECT_EQ(loaded.optimizer.parameter_steps(), steps);
  for (int number = 5; number < 15; ++number) {
    saved.step(number);
    loaded.step(number);
  }
  expect_same_bits(saved.values(), loaded.values());
  expect_same_bits(saved.state(), loaded.state());
}

TEST(OptimizerState, BR035_AParameterWithoutGradientsStaysWithoutState) {
  Rig rig;
  for (int number = 0; number < 3; ++number) rig.step(number);
  Rig loaded;
  load_optimizer_state(loaded.optimizer, loaded.arena, rig.state(), "state");
  for (const auto& entry : loaded.state()) {
    if (entry.name.starts_with("idle.")) {
      EXPECT_EQ(entry.tensor.abs().sum().item<double>(), 0) << entry.name;
    }
    if (entry.name == "full.step") {
      EXPECT_EQ(entry.tensor.item<std::int64_t>(), 3);
    }
  }
}

TEST(OptimizerState, AStateThatDoesNotFitIsRefusedByNameWithNothingChanged) {
  Rig rig;
  rig.step(0);
  const auto before = rig.state();
  auto wrong = rig.state();
  wrong[0].tensor = at::zeros({9});
  try {
    load_optimizer_state(rig.optimizer, rig.arena, wrong, "file.safetensors");
    FAIL() << "loaded";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr(wrong[0].name));
    EXPECT_THAT(error.what(), HasSubstr("file.safetensors"));
  }
  expect_same_bits(before, rig.state());
}

TEST(OptimizerState, BR027_LoadingAgainAndAgainTakesNoMoreMemory) {
  auto weight = at::zeros({1024, 1024}).requires_grad_();
  optim::ParameterArena arena({{"weight", weight}});
  optim::Adam optimizer({weight}, {});
  optimizer.bind(arena);
  const auto alone = comm::make_single_communicator();
  weight.mutable_grad().fill_(1);
  optimizer.step(0.1, 1);
  std::vector<optim::NamedTensor> state;
  for (const auto& entry : gather_optimizer_state(optimizer, arena, *alone)) {
    state.push_back({entry.name, entry.tensor.clone()});
  }
  std::uint64_t after_second = 0;
  for (int round = 1; round <= 200; ++round) {
    load_optimizer_state(optimizer, arena, state, "state");
    if (round == 2) after_second = host::process_memory()->resident_bytes;
  }
  // One leaked copy of the two moments is 8 MiB; 200 would be 1.6 GiB.
  EXPECT_LT(host::process_memory()->resident_bytes, after_second + (std::uint64_t{16} << 20));
  EXPECT_EQ(optimizer.state().size(), 2U);
}

}  // namespace
}  // namespace lockstep::train
