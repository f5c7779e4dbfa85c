// An own program that prints the order in which its ranks see 22 samples, two epochs long. With the word "draw" rank 1
// first draws random numbers, as a program does that makes something at random on one rank only.
#include <algorithm>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

int main(int argc, char** argv) {
  return lockstep::main(
      argc, argv,
      [](lockstep::Session& session) {
        constexpr std::int64_t kSamples = 22;
        if (session.arguments().back() == "draw" && session.rank() == 1) torch::randn({1000});
        const auto numbers = torch::arange(kSamples);
        auto loader = session.loader(
            lockstep::data::make_dataset(
                {"numbered", numbers.to(torch::kByte).view({kSamples, 1, 1, 1}), numbers, kSamples, {0.0}, {1.0}}),
            {.batch_size = 4});
        for (auto epoch : session.epochs(2)) {
          std::string line = "epoch " + std::to_string(epoch) + ":";
          for (const auto& batch : loader.epoch(epoch)) {
            for (std::int64_t i = 0; i < batch.size; ++i) {
              for (const double label : session.gather(static_cast<double>(batch.target[i].item<std::int64_t>()))) {
                line += ' ';
                line += std::to_string(static_cast<int>(label));
              }
            }
          }
          session.print(line);
        }
      },
      {.takes_arguments = true});
}
