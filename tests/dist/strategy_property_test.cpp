// Draws small random models, batches, optimizers and strategies, and compares each training run with one process on the
// whole batch. Ranks are threads over the local communicator, so that a draw takes milliseconds; other tests show that
// processes over shared memory give the same numbers.

#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include <torch/torch.h>

#include "lockstep/base/text.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/optim/large_batch.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategy.h"
#include "lockstep/parallel/zero.h"
#include "lockstep/train/engine.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;

struct Draw {
  explicit Draw(std::uint64_t seed) : random(seed) {
    width = pick(1, 24);
    depth = pick(1, 4);
    inputs = pick(1, 9);
    classes = pick(2, 6);
    has_branches = chance(0.4);
    shares_weights = chance(0.4);
    has_unused = chance(0.3);
    has_frozen = chance(0.3);
    has_convolution = chance(0.3);
    is_mixed = chance(0.25);
    world = pick(1, 4);
    accumulate = pick(1, 3);
    steps = pick(2, 5);
    strategy = std::vector<std::string>{"ddp", "zero1", "zero2"}[static_cast<std::size_t>(pick(0, 2))];
    optimizer = pick(0, 5);
    bucket_bytes = std::int64_t{1} << pick(4, 13);
    rebuild = chance(0.7);
    if (chance(0.3)) clip_norm = 0.05 + 0.1 * pick(0, 9);
    batch_seed = random();
  }
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random); }

  std::mt19937_64 random;
  int width, depth, inputs, classes, world, accumulate, steps, optimizer;
  bool has_branches, shares_weights, has_unused, has_frozen, has_convolution, is_mixed, rebuild;
  std::string strategy;
  std::int64_t bucket_bytes;
  std::optional<double> clip_norm;
  std::uint64_t batch_seed;

  std::string describe() const {
    return text(strategy, " x", world, ", width ", width, ", depth ", depth, ", accumulate ", accumulate, ", steps ",
                steps, ", optimizer ", optimizer, ", bucket ", bucket_bytes, has_branches ? ", branches" : "",
                shares_weights ? ", shared" : "", has_unused ? ", unused" : "", has_frozen ? ", frozen" : "",
                has_convolution ? ", convolution" : "", is_mixed ? ", mixed types" : "", rebuild ? ", rebuild" : "",
                clip_norm ? ", clip" : "");
  }
};

// Initial values come from the process's generator, which the ranks share.
std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

struct RandomNet : nn::Module {
  explicit RandomNet(const Draw& draw) : draw_(draw) {
    const std::lock_guard lock(generator_mutex());
    torch::manual_seed(draw.batch_seed & 0xffff);
    stem = register_module("stem", nn::Linear(draw.inputs, draw.width));
    for (int d = 0; d < draw.depth; ++d) {
      body.push_back(register_module(text("body", d), nn::Linear(draw.width, draw.width)));
    }
    if (draw.has_convolution) {
      convolution = register_module("convolution", nn::Conv2d(nn::Conv2dOptions(2, 3, 3).padding(1)));
      mix = register_module("mix", nn::Linear(3, draw.width));
    }
    heads.push_back(register_module("head0", nn::Linear(draw.width, draw.classes)));
    if (draw.has_branches) heads.push_back(register_module("head1", nn::Linear(draw.width, draw.classes)));
    if (draw.has_unused) never = register_module("never", nn::Linear(draw.width, 3));
    to(at::kDouble);
    if (draw.has_convolution) {
      convolution->weight.set_data(convolution->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
    }
    if (draw.is_mixed) body.front()->to(at::kFloat);
    if (draw.has_frozen) stem->bias.set_requires_grad(false);
  }

  at::Tensor forward(const at::Tensor& input, int branch) {
    auto x = at::tanh(stem->forward(input));
    for (int d = 0; d < draw_.depth; ++d) {
      auto& layer = draw_.shares_weights ? body[static_cast<std::size_t>(d / 2)] : body[static_cast<std::size_t>(d)];
      x = x + at::tanh(layer->forward(x.to(layer->weight.scalar_type()))).to(at::kDouble);
    }
    if (draw_.has_convolution) {
      const auto image = at::outer(input.flatten(), at::ones({2}, at::kDouble)).sum(0).view({1, 2, 1, 1});
      const auto maps = convolution->forward(image.expand({1, 2, 4, 4}));
      x = x + mix->forward(maps.mean({2, 3}));
    }
    return heads[draw_.has_branches ? static_cast<std::size_t>(branch) : 0]->forward(x);
  }

  const Draw& draw_;
  nn::Linear stem{nullptr}, mix{nullptr}, never{nullptr};
  nn::Conv2d convolution{nullptr};
  std::vector<nn::Linear> body, heads;
};

struct MicroBatch {
  at::Tensor input, label;
  int branch = 0;
};

// What a rank sees in a micro-batch: uneven numbers of samples, its own branch.
MicroBatch micro_batch(const Draw& draw, int step, int rank, int micro) {
  std::mt19937_64 random(draw.batch_seed + static_cast<std::uint64_t>(1009 * step + 101 * rank + micro));
  const auto samples = static_cast<std::int64_t>(1 + random() % 5);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(random());
  return {at::randn({samples, draw.inputs}, generator, at::kDouble),
          at::randint(draw.classes, {samples}, generator, at::kLong), static_cast<int>(random() % 2)};
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Draw& draw, std::vector<at::Tensor> parameters) {
  const auto half = static_cast<std::ptrdiff_t>(parameters.size() / 2);
  const std::vector<at::Tensor> first(parameters.begin(), parameters.begin() + half);
  const std::vector<at::Tensor> second(parameters.begin() + half, parameters.end());
  switch (draw.optimizer) {
    case 0:
      return std::make_unique<optim::SGD>(parameters, optim::SgdOptions{.lr = 0.1});
    case 1:
      return std::make_unique<optim::SGD>(
          parameters, optim::SgdOptions{.lr = 0.05, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.01});
    case 2:
      return std::make_unique<optim::AdamW>(parameters, optim::AdamOptions{.lr = 0.01, .weight_decay = 0.1});
    case 3:
      return std::make_unique<optim::Lamb>(parameters, optim::LambOptions{.lr = 0.01});
    case 4:
      return std::make_unique<optim::Lars>(parameters, optim::LarsOptions{.lr = 0.5, .trust = 0.05});
    default:
      return std::make_unique<optim::Adam>(std::vector<optim::ParameterGroup<optim::AdamOptions>>{
          {first, {.lr = 0.01}}, {second, {.lr = 0.002, .weight_decay = 0.1, .amsgrad = true}}});
  }
}

std::unique_ptr<parallel::Strategy> make_strategy(const Draw& draw, comm::Communicator& communicator) {
  const parallel::DdpOptions options{
      .bucket_bytes = draw.bucket_bytes, .first_bucket_bytes = draw.bucket_bytes, .rebuild_buckets = draw.rebuild};
  if (draw.strategy == "zero1") return parallel::make_zero(communicator, parallel::ZeroStage::kOptimizer, options);
  if (draw.strategy == "zero2") return parallel::make_zero(communicator, parallel::ZeroStage::kGradients, options);
  return parallel::make_ddp(communicator, options);
}

at::Tensor loss_of(RandomNet& net, const MicroBatch& batch) {
  return nn::functional::cross_entropy(net.forward(batch.input, batch.branch), batch.label);
}

// One thread a rank: where more want to run than there are CPUs, waiting OpenMP threads take the time of working ones.
std::vector<at::Tensor> train_rank(const Draw& draw, comm::Communicator& communicator) {
  at::set_num_threads(1);
  RandomNet net(draw);
  const auto optimizer = make_optimizer(draw, net.parameters());
  const auto strategy = make_strategy(draw, communicator);
  train::Engine engine(net, *optimizer, *strategy, {.clip_norm = draw.clip_norm});
  for (int step = 0; step < draw.steps; ++step) {
    for (int micro = 0; micro < draw.accumulate; ++micro) {
      const auto batch = micro_batch(draw, step, communicator.rank(), micro);
      engine.micro_step(batch.label.size(0), micro + 1 == draw.accumulate, [&] { return loss_of(net, batch); });
    }
  }
  std::vector<at::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

// One process, all ranks' micro-batches as accumulation: plain LibTorch arithmetic with the mean over all samples.
std::vector<at::Tensor> train_alone(const Draw& draw) {
  at::set_num_threads(1);
  RandomNet net(draw);
  const auto optimizer = make_optimizer(draw, net.parameters());
  const auto strategy = parallel::make_single();
  train::Engine engine(net, *optimizer, *strategy, {.clip_norm = draw.clip_norm});
  for (int step = 0; step < draw.steps; ++step) {
    for (int rank = 0; rank < draw.world; ++rank) {
      for (int micro = 0; micro < draw.accumulate; ++micro) {
        const auto batch = micro_batch(draw, step, rank, micro);
        const bool last = rank + 1 == draw.world && micro + 1 == draw.accumulate;
        engine.micro_step(batch.label.size(0), last, [&] { return loss_of(net, batch); });
      }
    }
  }
  return net.parameters();
}

void compare_one_draw(std::uint64_t seed) {
  const Draw draw(seed);
  SCOPED_TRACE(text("draw ", seed, ": ", draw.describe()));
  const auto expected = train_alone(draw);
  auto communicators = comm::make_local_communicators(draw.world, {.timeout = std::chrono::seconds(30)});
  std::vector<std::vector<at::Tensor>> results(communicators.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < communicators.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        results[r] = train_rank(draw, *communicators[r]);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  // A float layer inside rounds its gradients' sums in another order.
  const double tolerance = draw.is_mixed ? 2e-4 : 1e-10;
  for (std::size_t r = 0; r < results.size(); ++r) {
    ASSERT_EQ(results[r].size(), expected.size()) << "rank " << r;
    for (std::size_t p = 0; p < expected.size(); ++p) {
      EXPECT_LE((results[r][p] - expected[p]).abs().max().item<double>(), tolerance) << "rank " << r << ", " << p;
      EXPECT_TRUE(at::equal(results[r][p], results[0][p])) << "rank " << r << " ends with other weights, " << p;
    }
  }
}

int num_draws() {
  const char* given = std::getenv("LOCKSTEP_TEST_DRAWS");
  return given != nullptr ? std::atoi(given) : 50;
}

TEST(StrategyProperty, EveryDrawEqualsTheSingleProcess) {
  for (int seed = 0; seed < num_draws() && !::testing::Test::HasFailure(); ++seed) {
    compare_one_draw(static_cast<std::uint64_t>(seed));
  }
}

}  // namespace
}  // namespace lockstep
