#include "lockstep/data/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Indices = std::vector<std::int64_t>;

template <typename Body>
std::string config_error(const Body& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected a ConfigError";
  return {};
}

Indices all_ranks(SamplerOptions options, std::int64_t epoch) {
  Indices together;
  for (options.rank = 0; options.rank < options.num_replicas; ++options.rank) {
    const Indices mine = DistributedSampler(options).indices(epoch);
    together.insert(together.end(), mine.begin(), mine.end());
  }
  return together;
}

// Printed by torch.utils.data.DistributedSampler(range(22), 2, rank, seed=5) after set_epoch(epoch).
const Indices kReference[2][3] = {{{9, 0, 12, 5, 20, 17, 1, 11, 19, 4, 18},
                                   {2, 5, 20, 0, 4, 15, 17, 9, 19, 11, 16},
                                   {3, 0, 17, 13, 18, 20, 10, 12, 15, 7, 1}},
                                  {{13, 3, 6, 15, 8, 2, 21, 10, 7, 14, 16},
                                   {1, 14, 21, 13, 10, 7, 18, 12, 6, 8, 3},
                                   {14, 11, 4, 21, 8, 9, 19, 16, 6, 5, 2}}};

TEST(Sampler, BR064_EachEpochIsThePermutationOfPython) {
  for (int rank = 0; rank < 2; ++rank) {
    const DistributedSampler sampler({.length = 22, .num_replicas = 2, .rank = rank, .seed = 5});
    for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(sampler.indices(epoch), kReference[rank][epoch]);
    EXPECT_EQ(sampler.indices(1), kReference[rank][1]) << "the order must not depend on earlier calls";
  }
}

TEST(Sampler, BR064_RanksTogetherCoverEverySampleInEveryEpoch) {
  at::manual_seed(1);  // the global generator has no say
  for (int epoch = 0; epoch < 3; ++epoch) {
    Indices together = all_ranks({.length = 22, .num_replicas = 2, .seed = 5}, epoch);
    std::sort(together.begin(), together.end());
    Indices expected(22);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(together, expected);
    at::rand({epoch + 1});
  }
}

TEST(Sampler, BR049_EverySmallLengthOnEveryWorld) {
  for (std::int64_t length = 1; length <= 12; ++length) {
    for (std::int64_t world = 1; world <= 9; ++world) {
      for (const bool drop_last : {false, true}) {
        for (const bool shuffle : {false, true}) {
          const SamplerOptions options{
              .length = length, .num_replicas = world, .seed = 3, .shuffle = shuffle, .drop_last = drop_last};
          if (drop_last && length < world) {
            EXPECT_THAT(config_error([&] { DistributedSampler{options}; }),
                        HasSubstr(text("drop_last leaves nothing of ", length, " samples on ", world, " ranks")));
            continue;
          }
          const std::int64_t each = drop_last ? length / world : (length + world - 1) / world;
          EXPECT_EQ(DistributedSampler(options).num_samples(), each);
          Indices together = all_ranks(options, 0);
          EXPECT_EQ(std::ssize(together), each * world);
          EXPECT_GE(*std::min_element(together.begin(), together.end()), 0);
          EXPECT_LT(*std::max_element(together.begin(), together.end()), length);
          std::sort(together.begin(), together.end());
          const auto distinct = std::unique(together.begin(), together.end()) - together.begin();
          EXPECT_EQ(distinct, drop_last ? each * world : length);
        }
      }
    }
  }
}

TEST(Sampler, BR049_PaddingWrapsAsOftenAsNeeded) {
  const SamplerOptions options{.length = 2, .num_replicas = 5, .shuffle = false};
  EXPECT_THAT(all_ranks(options, 0), ElementsAre(0, 1, 0, 1, 0));
}

TEST(Sampler, BR049_BadArgumentsAreNamed) {
  const auto error_for = [](SamplerOptions options) { return config_error([&] { DistributedSampler{options}; }); };
  EXPECT_THAT(error_for({.length = 4, .num_replicas = 0}), HasSubstr("num_replicas is 0, expected 1 or more"));
  EXPECT_THAT(error_for({.length = 4, .num_replicas = -1}), HasSubstr("num_replicas is -1"));
  EXPECT_THAT(error_for({.length = 4, .num_replicas = 3, .rank = 3}), HasSubstr("rank is 3, expected 0 to 2"));
  EXPECT_THAT(error_for({.length = 4, .num_replicas = 3, .rank = -1}), HasSubstr("rank is -1"));
  for (std::int64_t world = 1; world <= 9; ++world) {
    EXPECT_THAT(error_for({.length = 0, .num_replicas = world}), HasSubstr("the data set has 0 samples"));
  }
}

TEST(Sampler, BR055_ExactShardsCountEverySampleOnce) {
  for (const std::int64_t length : {10, 10000, 10001}) {
    for (const std::int64_t world : {1, 2, 3, 4, 8}) {
      std::vector<int> seen(static_cast<std::size_t>(length));
      for (std::int64_t rank = 0; rank < world; ++rank) {
        for (const auto index : exact_shard(length, world, rank, 256)) ++seen.at(static_cast<std::size_t>(index));
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), length) << length << " on " << world;
    }
  }
  EXPECT_TRUE(exact_shard(2, 4, 3, 1).empty());
  EXPECT_THAT(exact_shard(11, 2, 0, 3), ElementsAre(0, 1, 2, 6, 7, 8));
  EXPECT_THAT(exact_shard(11, 2, 1, 3), ElementsAre(3, 4, 5, 9, 10));
  EXPECT_THAT(config_error([] { exact_shard(11, 2, 1, 0); }), HasSubstr("batch_size is 0"));
}

// What Python prints for the cases of a file "length world rank seed epoch shuffle drop_last", a line each.
constexpr const char* kPythonScript = R"(
import sys
from torch.utils.data import DistributedSampler
for line in open(sys.argv[1]):
    length, world, rank, seed, epoch, shuffle, drop = map(int, line.split())
    sampler = DistributedSampler(range(length), world, rank, bool(shuffle), seed, bool(drop))
    sampler.set_epoch(epoch)
    print(*sampler)
)";

TEST(Sampler, EqualsPythonIn200RandomCases) {
  const char* python = std::getenv("LOCKSTEP_PYTHON");
  ASSERT_TRUE(python != nullptr && *python != '\0') << "LOCKSTEP_PYTHON is empty: this test needs a Python with torch; "
                                                       "scripts/test.sh --no-python-tests goes without";
  const TemporaryDirectory folder("sampler-test");
  std::mt19937_64 random(20260102);
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
  };
  std::vector<SamplerOptions> cases;
  Indices epochs;
  std::string lines;
  const auto add = [&](const SamplerOptions& options, std::int64_t epoch) {
    cases.push_back(options);
    epochs.push_back(epoch);
    lines += text(options.length, ' ', options.num_replicas, ' ', options.rank, ' ', options.seed, ' ', epoch, ' ',
                  options.shuffle ? 1 : 0, ' ', options.drop_last ? 1 : 0, '\n');
  };
  // BR-006's own: what loader_test.cpp has as literals.
  for (const std::int64_t epoch : {0, 1, 2}) {
    for (const std::int64_t rank : {0, 1}) add({.length = 8, .num_replicas = 2, .rank = rank}, epoch);
  }
  while (cases.size() < 206) {
    SamplerOptions options{.length = 1 + draw(cases.size() % 4 == 0 ? 20 : 3000),
                           .num_replicas = 1 + draw(16),
                           .seed = random() >> 2 >> draw(62),
                           .shuffle = draw(8) != 0,
                           .drop_last = draw(2) != 0};
    options.rank = draw(options.num_replicas);
    if (options.drop_last && options.length < options.num_replicas) continue;  // an error here, an empty list there
    add(options, draw(50));
  }
  write_file_atomic(folder.path() / "cases", lines);
  write_file_atomic(folder.path() / "script.py", kPythonScript);
  const std::string command = text("'", python, "' ", (folder.path() / "script.py").string(), " ",
                                   (folder.path() / "cases").string(), " > ", (folder.path() / "out").string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;

  std::ifstream out(folder.path() / "out");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::string line;
    ASSERT_TRUE(std::getline(out, line)) << "Python printed only " << i << " lines";
    std::istringstream numbers(line);
    const Indices expected{std::istream_iterator<std::int64_t>(numbers), {}};
    ASSERT_EQ(DistributedSampler(cases[i]).indices(epochs[i]), expected) << split(lines, '\n')[i];
  }
}

}  // namespace
}  // namespace lockstep::data
