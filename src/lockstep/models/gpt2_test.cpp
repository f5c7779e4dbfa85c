#include "lockstep/models/gpt2.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/models/loss.h"

namespace lockstep::models {
namespace {

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

constexpr TokenShape kSmall{.vocabulary = 11, .positions = 8, .layers = 2, .heads = 2, .width = 6};

std::shared_ptr<Model> small(std::uint64_t seed, const ModelOptions& options = {}) {
  torch::manual_seed(seed);
  auto model = make_token_model("gpt2", kSmall, options);
  model->to(at::kDouble);
  return model;
}

/// The state dict of Hugging Face's GPT2LMHeadModel, by formula.
Shapes hugging_face_shapes(const TokenShape& s) {
  const std::int64_t w = s.width;
  Shapes shapes{{"transformer.wte.weight", {s.vocabulary, w}},
                {"transformer.wpe.weight", {s.positions, w}},
                {"transformer.ln_f.weight", {w}},
                {"transformer.ln_f.bias", {w}},
                {"lm_head.weight", {s.vocabulary, w}}};
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string layer = "transformer.h." + std::to_string(i) + ".";
    for (const char* norm : {"ln_1", "ln_2"}) {
      shapes[layer + norm + ".weight"] = {w};
      shapes[layer + norm + ".bias"] = {w};
    }
    const std::pair<const char*, std::vector<std::int64_t>> linears[] = {
        {"attn.c_attn", {w, 3 * w}}, {"attn.c_proj", {w, w}}, {"mlp.c_fc", {w, 4 * w}}, {"mlp.c_proj", {4 * w, w}}};
    for (const auto& [name, shape] : linears) {
      shapes[layer + name + ".weight"] = shape;
      shapes[layer + name + ".bias"] = {shape.back()};
    }
  }
  return shapes;
}

TEST(Gpt2, NamesShapesAndNumberOfParametersAreHuggingFaces) {
  const auto model = make_token_model("gpt2", {});
  Shapes shapes;
  for (const auto& [name, tensor] : model->state_dict()) shapes[name] = tensor.sizes().vec();
  EXPECT_EQ(shapes, hugging_face_shapes({}));
  std::int64_t numel = 0;
  for (const auto& parameter : model->parameters()) numel += parameter.numel();
  EXPECT_EQ(numel, 124'439'808);
}

TEST(Gpt2, TheHeadIsTheTokenEmbeddingAndHeldOnce) {
  const auto model = small(1);
  const auto state = model->state_dict();
  EXPECT_EQ(state.back().first, "lm_head.weight");
  EXPECT_TRUE(state.back().second.is_same(model->named_parameters()["transformer.wte.weight"]));
  EXPECT_FALSE(model->named_parameters().contains("lm_head.weight"));
}

TEST(Gpt2, InitialValues) {
  torch::manual_seed(2);
  const auto model =
      make_token_model("gpt2", {.vocabulary = 500, .positions = 64, .layers = 3, .heads = 4, .width = 64});
  for (const auto& entry : model->named_parameters()) {
    const auto& name = entry.key();
    const auto& value = entry.value();
    if (value.dim() == 2) {
      const double want = name.find("c_proj") != std::string::npos ? 0.02 / std::sqrt(6.0) : 0.02;
      EXPECT_NEAR(value.std().item<double>() / want, 1.0, 0.05) << name;
    } else {
      EXPECT_TRUE(at::all(value == (name.ends_with("weight") ? 1 : 0)).item<bool>()) << name;
    }
  }
}

TEST(Gpt2, LogitsHaveAVocabularyAndNoTokenSeesALaterOne) {
  const auto model = small(3);
  const auto tokens = at::randint(0, 11, {2, 5}, at::kLong);
  const auto logits = model->forward(tokens);
  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 5, 11}));
  auto changed = tokens.clone();
  changed.select(1, 3).copy_((tokens.select(1, 3) + 1) % 11);
  const auto other = model->forward(changed);
  EXPECT_TRUE(at::equal(other.narrow(1, 0, 3), logits.narrow(1, 0, 3)));
  EXPECT_FALSE(at::allclose(other.narrow(1, 3, 2), logits.narrow(1, 3, 2)));
}

TEST(Gpt2, TheLossIsTheMeanOverTokens) {
  const auto logits = at::randn({2, 5, 11}, at::kDouble);
  const auto target = at::randint(0, 11, {2, 5}, at::kLong);
  const auto want = -logits.log_softmax(2).gather(2, target.unsqueeze(2)).mean();
  EXPECT_NEAR(cross_entropy(logits, target).item<double>(), want.item<double>(), 1e-12);
  EXPECT_THROW(cross_entropy(logits, target.t()), ConfigError);
}

TEST(Gpt2, RecomputingIsBitForBitTheSame) {
  const auto plain = small(4), recomputed = small(4, {.recompute = true});
  const auto tokens = at::randint(0, 11, {3, 7}, at::kLong);
  for (const auto& model : {plain, recomputed}) cross_entropy(model->forward(tokens), tokens).backward();
  const auto want = plain->named_parameters();
  for (const auto& entry : recomputed->named_parameters()) {
    EXPECT_TRUE(at::equal(entry.value().grad(), want[entry.key()].grad())) << entry.key();
  }
}

/// Names of `state` in order, and that its tensors are those of `model`.
void expect_own(const Model& model, StateDict state) {
  const auto own = model.own_names(std::move(state));
  const auto parameters = model.named_parameters();
  EXPECT_EQ(own.size(), parameters.size());
  for (const auto& [name, tensor] : own) {
    ASSERT_TRUE(parameters.contains(name)) << name;
    EXPECT_TRUE(at::equal(parameters[name], tensor)) << name;
  }
}

TEST(Gpt2, TakesTheUsualFormsOfItsStateDict) {
  const auto model = small(5);
  const auto full = model->state_dict();
  expect_own(*model, full);
  for (const bool prefix : {true, false}) {
    for (const char* without : {"lm_head.weight", "wte.weight", "neither"}) {
      StateDict state;
      for (auto [name, tensor] : full) {
        if (name.ends_with(without)) continue;
        if (!prefix && name.starts_with("transformer.")) name.erase(0, 12);
        state.emplace_back(name, tensor);
      }
      const std::string layer = prefix ? "transformer.h.1.attn." : "h.1.attn.";
      state.emplace_back(layer + "bias", at::ones({1, 1, 8, 8}, at::kByte));
      state.emplace_back(layer + "masked_bias", at::scalar_tensor(-1e4));
      expect_own(*model, state);
    }
  }
}

TEST(Gpt2, AStateDictWithAHeadOfItsOwnIsRefused) {
  const auto model = small(6);
  auto state = model->state_dict();
  state.back().second = state.back().second + 1;
  EXPECT_THROW(model->own_names(state), DataError);
}

TEST(Gpt2, RefusesWhatItCannotTake) {
  EXPECT_THROW(make_token_model("gpt2", {.heads = 5}), ConfigError);
  EXPECT_THROW(make_token_model("gpt2", {.vocabulary = 0}), ConfigError);
  const auto model = small(7);
  EXPECT_THROW(model->forward(at::zeros({1, 9}, at::kLong)), ConfigError);
  EXPECT_THROW(model->forward(at::zeros({1, 2})), ConfigError);
  EXPECT_THROW(model->forward(at::zeros({2}, at::kLong)), ConfigError);
  EXPECT_THROW(make_model("gpt2", {3, 32, 32, 10}), ConfigError);
  EXPECT_THROW(make_token_model("cnn", {}), ConfigError);
  EXPECT_THROW(make_token_model("gpt3", {}), ConfigError);
}

}  // namespace
}  // namespace lockstep::models
