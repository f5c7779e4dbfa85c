// Trains a small network on Fashion-MNIST on one device: a plain LibTorch module, Lockstep's loader and engine.
//
//   ./010_single_device            the CPU, or the GPU when there is one

#include <torch/torch.h>

#include "lockstep/lockstep.h"

struct MyNet : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(784, 64))};
  torch::nn::Linear output{register_module("output", torch::nn::Linear(64, 10))};

  torch::Tensor forward(const torch::Tensor& images) { return output(torch::relu(hidden(images.flatten(1)))); }
};

int main(int argc, char** argv) {
  return lockstep::main(argc, argv, [](lockstep::Session& session) {
    auto model = session.place(MyNet());
    auto optimizer = lockstep::optim::Adam(model->parameters(), {.lr = 1e-3});
    auto engine = session.engine(model, optimizer);
    auto loader = session.loader(lockstep::data::fashion_mnist(), {.batch_size = 64});
    for (const auto& batch : loader.epoch(0)) {
      engine.step(batch, [&](auto& images, auto& labels) {
        return torch::nn::functional::cross_entropy(model->forward(images), labels);
      });
    }
    const auto result = session.evaluate(model, lockstep::data::fashion_mnist({}, lockstep::data::Split::kEval));
    session.print("accuracy " + std::to_string(result.accuracy));
    if (result.accuracy < 0.80) throw lockstep::Error("one epoch should reach an accuracy of 0.80");
  });
}
