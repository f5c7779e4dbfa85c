// A user's program, built apart from Lockstep in each way of docs/use-from-your-program.md: a module of its own,
// trained on images that it makes in memory. It says whether CUDA was found, and which libtorch_cuda is in the process.

#include <link.h>

#include <string>
#include <vector>

#include <lockstep/lockstep.h>
// Parts of torch/torch.h, since the tests compile this often: 14 s, not 25.
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

namespace {

struct MyNet : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(64, 32))};
  torch::nn::Linear output{register_module("output", torch::nn::Linear(32, 4))};

  torch::Tensor forward(const torch::Tensor& images) { return output(torch::relu(hidden(images.flatten(1)))); }
};

// The brightest quarter of an image is its label.
lockstep::data::DatasetPtr quarters() {
  auto pixels = torch::randint(0, 100, {512, 1, 8, 8}, torch::kUInt8);
  auto labels = torch::arange(512, torch::kInt64).remainder(4);
  for (std::int64_t sample = 0; sample < 512; ++sample) pixels[sample][0].narrow(0, 2 * (sample % 4), 2) += 100;
  return lockstep::data::make_dataset(
      {.name = "quarters", .pixels = pixels, .labels = labels, .num_classes = 4, .mean = {0.3}, .deviation = {0.2}});
}

std::string loaded_libtorch_cuda() {
  std::string path = "none";
  const auto look = [](dl_phdr_info* object, std::size_t, void* found) {
    const std::string name = object->dlpi_name;
    if (name.ends_with("libtorch_cuda.so")) *static_cast<std::string*>(found) = name;
    return 0;
  };
  ::dl_iterate_phdr(look, &path);
  return path;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "load-first") lockstep::train::load_cuda();
  if (first == "load-first" || first == "ask-first") torch::cuda::is_available();
  return lockstep::main(
      argc, argv,
      [](lockstep::Session& session) {
        auto model = session.place(MyNet());
        auto optimizer = lockstep::optim::SGD(model->parameters(), {.lr = 0.1});
        auto engine = session.engine(model, optimizer);
        auto loader = session.loader(quarters(), {.batch_size = 16});
        for (auto epoch : session.epochs(2)) {
          for (const auto& batch : loader.epoch(epoch)) {
            engine.step(batch, [&](auto& images, auto& labels) {
              return torch::nn::functional::cross_entropy(model->forward(images), labels);
            });
          }
        }
        const double accuracy = session.evaluate(model, quarters()).accuracy;
        session.print("steps " + std::to_string(engine.num_steps()) + " accuracy " + std::to_string(accuracy));
        session.print("device " + session.device().str());
        session.print(std::string("torch::cuda::is_available ") + (torch::cuda::is_available() ? "yes" : "no"));
        session.print("libtorch_cuda " + loaded_libtorch_cuda());
        if (accuracy < 0.9) throw lockstep::Error("two epochs should reach an accuracy of 0.90");
      },
      {.takes_arguments = true});
}
