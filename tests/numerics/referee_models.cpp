#include "numerics/referee_models.h"

#include <stdexcept>

#include "lockstep/models/model.h"

namespace lockstep {

namespace {

namespace nn = torch::nn;

struct BatchNormNet : nn::Module {
  nn::Conv2d conv1{nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)};
  nn::BatchNorm2d bn1{8};
  nn::Conv2d conv2{nn::Conv2dOptions(8, 16, 3).stride(2).bias(false)};
  nn::BatchNorm2d bn2{16};
  nn::Linear head{16, 10};

  BatchNormNet() {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    x = at::relu(bn1->forward(conv1->forward(x)));
    x = at::relu(bn2->forward(conv2->forward(x)));
    return head->forward(x.mean({2, 3}));
  }
};

struct BranchNet : nn::Module {
  nn::Linear stem{16, 16}, a{16, 10}, b{16, 10}, never{16, 10};

  BranchNet() {
    register_module("stem", stem);
    register_module("a", a);
    register_module("b", b);
    register_module("never", never);
  }
  at::Tensor forward(const at::Tensor& x, int branch) {
    auto& head = branch != 0 ? b : a;
    return head->forward(at::relu(stem->forward(x)));
  }
};

// The head's weight is the embedding's: one tensor, held once, under the embedding's name.
struct TiedNet : nn::Module {
  nn::Embedding embedding{32, 16};
  nn::Linear hidden{16, 16};

  TiedNet() {
    register_module("embedding", embedding);
    register_module("hidden", hidden);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const auto x = embedding->forward(tokens).mean(1);
    return at::linear(at::tanh(hidden->forward(x)), embedding->weight);
  }
};

template <typename Net>
RefereeModel plain(std::shared_ptr<Net> net) {
  return {net, [net](const at::Tensor& input, int) { return net->forward(input); }};
}

}  // namespace

RefereeModel make_referee_model(const std::string& name, bool fuse) {
  if (name == "cnn") return plain(models::make_model("cnn", {3, 32, 32, 10}, {.fuse = fuse}));
  if (name == "mlp") return plain(models::make_model("mlp", {1, 28, 28, 10}, {.fuse = fuse}));
  if (name == "bn") return plain(std::make_shared<BatchNormNet>());
  if (name == "tied") return plain(std::make_shared<TiedNet>());
  if (name == "branch") {
    auto net = std::make_shared<BranchNet>();
    return {net, [net](const at::Tensor& input, int branch) { return net->forward(input, branch); }};
  }
  throw std::invalid_argument("the referee has no model " + name);
}

}  // namespace lockstep
