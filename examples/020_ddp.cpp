// The same on several ranks: not a line of the training changes.
//
//   ./020_ddp                                     alone
//   ./020_ddp --nproc 2                           two processes on this machine
//   ./020_ddp --nproc 2 --strategy dp             two threads of one process
//   lockstep run --nproc-per-node 2 -- ./020_ddp
//   torchrun --no-python --nproc-per-node 2 ./020_ddp

#include <torch/torch.h>

#include "lockstep/lockstep.h"

struct MyNet : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(784, 64))};
  torch::nn::Linear output{register_module("output", torch::nn::Linear(64, 10))};

  torch::Tensor forward(const torch::Tensor& images) { return output(torch::relu(hidden(images.flatten(1)))); }
};

int main(int argc, char** argv) {
  return lockstep::main(argc, argv, [](lockstep::Session& session) {
    constexpr std::int64_t kBatchSize = 32;
    auto model = session.place(MyNet());  // the same weights on all ranks
    auto optimizer = lockstep::optim::SGD(model->parameters(), {.lr = session.scaled_lr(0.2, kBatchSize)});
    auto engine = session.engine(model, optimizer);
    auto loader = session.loader(lockstep::data::fashion_mnist(), {.batch_size = kBatchSize});
    for (auto epoch : session.epochs(2)) {
      for (const auto& batch : loader.epoch(epoch)) {
        engine.step(batch, [&](auto& images, auto& labels) {
          return torch::nn::functional::cross_entropy(model->forward(images), labels);
        });
      }
    }
    const auto result = session.evaluate(model, lockstep::data::fashion_mnist({}, lockstep::data::Split::kEval));
    session.print("ranks " + std::to_string(session.size()) + " accuracy " + std::to_string(result.accuracy));
    if (result.accuracy < 0.80) throw lockstep::Error("two epochs should reach an accuracy of 0.80");
  });
}
