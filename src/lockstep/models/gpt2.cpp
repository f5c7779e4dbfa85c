#include "lockstep/models/gpt2.h"

#include <cmath>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/models/recompute.h"

namespace lockstep::models {

namespace nn = torch::nn;

namespace {

constexpr double kDeviation = 0.02;
constexpr std::string_view kPrefix = "transformer.";
constexpr const char* kTokenWeight = "transformer.wte.weight";
constexpr const char* kHeadWeight = "lm_head.weight";

nn::LayerNorm layer_norm(std::int64_t width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}).eps(1e-5));
}

/// x W + b with W [inputs, outputs], which Hugging Face calls Conv1D.
class Projection : public nn::Module {
 public:
  Projection(std::int64_t inputs, std::int64_t outputs)
      : weight_(register_parameter("weight", at::empty({inputs, outputs}))),
        bias_(register_parameter("bias", at::zeros({outputs}))) {}

  at::Tensor forward(const at::Tensor& x) const {
    auto shape = x.sizes().vec();
    shape.back() = weight_.size(1);
    return at::addmm(bias_, x.reshape({-1, weight_.size(0)}), weight_).view(shape);
  }

  /// The draws of a fresh nn.Linear, whose values are not used.
  void skip_linear_draws() const {
    at::empty({weight_.size(1), weight_.size(0)}).uniform_();
    at::empty({weight_.size(1)}).uniform_();
  }

  void draw(double deviation) {
    weight_.copy_(at::empty({weight_.size(1), weight_.size(0)}).normal_(0, deviation).t());
  }

 private:
  at::Tensor weight_;  // [inputs, outputs]
  at::Tensor bias_;    // [outputs]
};

class Attention : public nn::Module {
 public:
  Attention(std::int64_t width, std::int64_t heads)
      : c_attn(register_module("c_attn", std::make_shared<Projection>(width, 3 * width))),
        c_proj(register_module("c_proj", std::make_shared<Projection>(width, width))),
        heads_(heads) {}

  at::Tensor forward(const at::Tensor& x) const {
    const std::int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const at::Tensor qkv = c_attn->forward(x).view({batch, length, 3, heads_, width / heads_});
    const auto part = [&](std::int64_t index) { return qkv.select(2, index).transpose(1, 2); };
    const at::Tensor y = at::scaled_dot_product_attention(part(0), part(1), part(2), {}, 0.0, /*is_causal=*/true);
    return c_proj->forward(y.transpose(1, 2).reshape({batch, length, width}));
  }

  const std::shared_ptr<Projection> c_attn, c_proj;

 private:
  const std::int64_t heads_;
};

class FeedForward : public nn::Module {
 public:
  explicit FeedForward(std::int64_t width)
      : c_fc(register_module("c_fc", std::make_shared<Projection>(width, 4 * width))),
        c_proj(register_module("c_proj", std::make_shared<Projection>(4 * width, width))) {}

  at::Tensor forward(const at::Tensor& x) const { return c_proj->forward(at::gelu(c_fc->forward(x), "tanh")); }

  const std::shared_ptr<Projection> c_fc, c_proj;
};

void check(const TokenShape& shape) {
  if (shape.vocabulary < 1 || shape.positions < 1 || shape.layers < 1 || shape.heads < 1 || shape.width < 1 ||
      shape.width % shape.heads != 0) {
    throw ConfigError(text("model gpt2: vocabulary ", shape.vocabulary, ", positions ", shape.positions, ", layers ",
                           shape.layers, ", heads ", shape.heads, " and width ", shape.width,
                           " must all be at least 1, and width a multiple of heads"));
  }
}

}  // namespace

class Gpt2Layer : public nn::Module {
 public:
  Gpt2Layer(std::int64_t width, std::int64_t heads)
      : ln_1_(register_module("ln_1", layer_norm(width))),
        attn_(register_module("attn", std::make_shared<Attention>(width, heads))),
        ln_2_(register_module("ln_2", layer_norm(width))),
        mlp_(register_module("mlp", std::make_shared<FeedForward>(width))) {}

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor x = input + attn_->forward(ln_1_->forward(input));
    return x + mlp_->forward(ln_2_->forward(x));
  }

  void skip_linear_draws() const {
    for (const auto& projection : {attn_->c_attn, attn_->c_proj, mlp_->c_fc, mlp_->c_proj}) {
      projection->skip_linear_draws();
    }
  }

  /// `residual_deviation`: of the projections whose results are added to the stream.
  void draw(double deviation, double residual_deviation) {
    attn_->c_attn->draw(deviation);
    attn_->c_proj->draw(residual_deviation);
    mlp_->c_fc->draw(deviation);
    mlp_->c_proj->draw(residual_deviation);
  }

 private:
  nn::LayerNorm ln_1_;
  std::shared_ptr<Attention> attn_;
  nn::LayerNorm ln_2_;
  std::shared_ptr<FeedForward> mlp_;
};

Gpt2::Gpt2(const TokenShape& shape, const ModelOptions& options)
    : shape_(shape), recompute_(options.recompute), ln_f_(nullptr) {
  check(shape);
  const auto body = register_module("transformer", std::make_shared<nn::Module>("transformer"));
  const auto embedding = [&](const char* name, std::int64_t rows) {
    const auto module = body->register_module(name, std::make_shared<nn::Module>("embedding"));
    return module->register_parameter("weight", at::empty({rows, shape.width}));
  };
  wte_ = embedding("wte", shape.vocabulary);
  wpe_ = embedding("wpe", shape.positions);
  const auto layers = body->register_module("h", std::make_shared<nn::Module>("h"));
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    layers_.push_back(
        layers->register_module(std::to_string(i), std::make_shared<Gpt2Layer>(shape.width, shape.heads)));
  }
  ln_f_ = body->register_module("ln_f", layer_norm(shape.width));
  initialize();
}

// Python's modules draw when they are made and once more when the model sets its own values, so both are drawn here.
void Gpt2::initialize() {
  at::NoGradGuard no_grad;
  wte_.normal_();
  wpe_.normal_();
  for (const auto& layer : layers_) layer->skip_linear_draws();
  wte_.uniform_();  // the head, before it was tied
  wte_.normal_(0, kDeviation);
  wpe_.normal_(0, kDeviation);
  const double residual_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(shape_.layers));
  for (const auto& layer : layers_) layer->draw(kDeviation, residual_deviation);
}

at::Tensor Gpt2::forward(at::Tensor input) {
  if (input.dim() != 2 || input.scalar_type() != at::kLong) {
    throw ConfigError(text("model gpt2: tokens must be int64 [N, T], these are ", c10::toString(input.scalar_type()),
                           " of ", input.dim(), " dimensions"));
  }
  if (input.size(1) > shape_.positions) {
    throw ConfigError(
        text("model gpt2: sequences of ", input.size(1), " tokens; it has ", shape_.positions, " positions"));
  }
  at::Tensor x = at::embedding(wte_, input) + wpe_.narrow(0, 0, input.size(1));
  for (const auto& layer : layers_) {
    x = recompute_ ? recompute(layer, x, Random::kNone) : layer->forward(x);
  }
  return at::linear(ln_f_->forward(x), wte_);
}

StateDict Gpt2::state_dict() const {
  StateDict state = Model::state_dict();
  state.emplace_back(kHeadWeight, wte_);
  return state;
}

StateDict Gpt2::own_names(StateDict state) const {
  StateDict out;
  at::Tensor tokens, head;
  for (auto& [name, tensor] : state) {
    if (name == kHeadWeight) {
      head = tensor;
      continue;
    }
    if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) continue;
    if (!name.starts_with(kPrefix)) name.insert(0, kPrefix);
    if (name == kTokenWeight) tokens = tensor;
    out.emplace_back(std::move(name), std::move(tensor));
  }
  if (!head.defined()) return out;
  if (!tokens.defined()) {
    out.emplace_back(kTokenWeight, head);
  } else if (!at::equal(head, tokens)) {
    throw DataError(text(kHeadWeight, " differs from ", kTokenWeight, ": GPT-2's head is its token embedding"));
  }
  return out;
}

}  // namespace lockstep::models
