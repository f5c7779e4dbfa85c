#pragma once

#include <memory>
#include <vector>

#include "lockstep/models/model.h"

namespace lockstep::models {

class Gpt2Layer;

/// GPT-2 (Radford et al. 2019): learned positions, pre-norm layers of causal attention and a 4x wide GELU (tanh) MLP,
/// LayerNorm with eps 1e-5, no dropout, and a head that is the token embedding. Names and shapes are Hugging Face's:
/// transformer.wte.weight, transformer.wpe.weight, transformer.h.0.ln_1.*, .attn.c_attn.*, .attn.c_proj.*, .ln_2.*,
/// .mlp.c_fc.*, .mlp.c_proj.*, transformer.ln_f.*; linear weights are [in, out]. The tied lm_head.weight is held once,
/// as transformer.wte.weight.
///
/// Weights start from N(0, 0.02), those of both c_proj from N(0, 0.02 / sqrt(2 * layers)), biases from 0. The numbers
/// are drawn in the order of the Python benchmark's GPT (benchmarks/python/models.py): the same seed gives the same
/// values.
class Gpt2 : public Model {
 public:
  Gpt2(const TokenShape& shape, const ModelOptions& options);

  /// int64 tokens [N, T] -> logits [N, T, vocabulary]. Throws ConfigError for more than `positions` tokens or another
  /// type or rank.
  at::Tensor forward(at::Tensor input) override;

  /// With lm_head.weight.
  StateDict state_dict() const override;
  /// Takes names with and without "transformer.", with and without lm_head.weight (or that one alone), and the masks
  /// `attn.bias` and `attn.masked_bias` of old files.
  StateDict own_names(StateDict state) const override;

 private:
  void initialize();

  const TokenShape shape_;
  const bool recompute_;
  at::Tensor wte_;  // [vocabulary, width]
  at::Tensor wpe_;  // [positions, width]
  std::vector<std::shared_ptr<Gpt2Layer>> layers_;
  torch::nn::LayerNorm ln_f_;
};

}  // namespace lockstep::models
