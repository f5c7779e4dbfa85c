// What the arena, the reducer and the engine cost on top of plain LibTorch: the MLP (784-128-10, batch 32, Adam) by a
// plain loop with torch::optim::Adam, and by the engine with ddp over a world of one, both with ATen's operations. The
// two run in alternating blocks in one process, one thread; the result is one JSON document.
//
//   micro_reducer [PAIRS] [STEPS_A_BLOCK]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <torch/torch.h>

#include "lockstep/comm/communicator.h"
#include "lockstep/models/model.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/train/engine.h"

namespace {

using Clock = std::chrono::steady_clock;
using namespace lockstep;

constexpr std::int64_t kBatch = 32;

double microseconds_a_step(Clock::duration total, int steps) {
  return std::chrono::duration<double, std::micro>(total).count() / steps;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

void print(const char* name, const std::vector<double>& values, const char* end) {
  std::printf("\"%s\": {\"median\": %.2f, \"p10\": %.2f, \"p90\": %.2f}%s", name, quantile(values, 0.5),
              quantile(values, 0.1), quantile(values, 0.9), end);
}

}  // namespace

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 15;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 1000;
  at::set_num_threads(1);
  torch::manual_seed(0);
  const auto input = torch::randn({kBatch, 1, 28, 28});
  const auto target = torch::randint(10, {kBatch}, torch::kLong);

  const auto plain = models::make_model("mlp", {1, 28, 28, 10}, {.fuse = false});
  torch::optim::Adam adam(plain->parameters(), torch::optim::AdamOptions(1e-3));
  const auto plain_block = [&] {
    const auto start = Clock::now();
    for (int step = 0; step < steps; ++step) {
      adam.zero_grad();
      torch::nn::functional::cross_entropy(plain->forward(input), target).backward();
      adam.step();
    }
    return microseconds_a_step(Clock::now() - start, steps);
  };

  const auto ours = models::make_model("mlp", {1, 28, 28, 10}, {.fuse = false});
  optim::Adam fused(ours->parameters(), {.lr = 1e-3});
  const auto communicator = comm::make_single_communicator();
  const auto ddp = parallel::make_ddp(*communicator, {});
  train::Engine engine(*ours, fused, *ddp, {});
  const auto our_block = [&] {
    const auto start = Clock::now();
    for (int step = 0; step < steps; ++step) {
      engine.micro_step(kBatch, true,
                        [&] { return torch::nn::functional::cross_entropy(ours->forward(input), target); });
    }
    return microseconds_a_step(Clock::now() - start, steps);
  };

  plain_block();
  our_block();
  std::vector<double> plain_us, our_us, ratios;
  for (int pair = 0; pair < pairs; ++pair) {
    plain_us.push_back(plain_block());
    our_us.push_back(our_block());
    ratios.push_back(our_us.back() / plain_us.back());
  }
  std::printf("{\"pairs\": %d, \"steps_a_block\": %d, ", pairs, steps);
  print("libtorch_us_a_step", plain_us, ", ");
  print("lockstep_us_a_step", our_us, ", ");
  print("ratio", ratios, "}\n");
  return 0;
}
