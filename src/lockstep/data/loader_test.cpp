#include "lockstep/data/loader.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Image i has the value i everywhere and the label i, so a batch shows which samples are in it.
DatasetPtr numbered(std::int64_t count, std::int64_t channels = 1) {
  auto pixels = at::arange(count, at::kByte).view({count, 1, 1, 1}).expand({count, channels, 3, 5});
  return make_dataset({"numbered", pixels, at::arange(count, at::kLong), count,
                       std::vector<double>(static_cast<std::size_t>(channels), 0.25),
                       std::vector<double>(static_cast<std::size_t>(channels), 0.5)});
}

std::vector<std::int64_t> labels_of(const Batch& batch) {
  const auto* label = batch.target.const_data_ptr<std::int64_t>();
  return {label, label + batch.size};
}

std::vector<std::int64_t> labels_of(Loader::Epoch epoch) {
  std::vector<std::int64_t> labels;
  for (const Batch& batch : epoch) {
    const auto more = labels_of(batch);
    labels.insert(labels.end(), more.begin(), more.end());
  }
  return labels;
}

int num_threads() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// A joined thread stays in /proc for a moment.
bool threads_fall_to(int expected) {
  for (int i = 0; i < 1000 && num_threads() != expected; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return num_threads() == expected;
}

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

class LoaderWithWorkers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, LoaderWithWorkers, ::testing::Values(0, 1, 3));

TEST_P(LoaderWithWorkers, NormalisesAsPythonDoes) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    Loader loader(numbered(200, 2), {.batch_size = 32, .workers = GetParam(), .dtype = dtype});
    std::int64_t seen = 0;
    for (const Batch& batch : loader.epoch(0)) {
      EXPECT_EQ(batch.index, seen / 32);
      EXPECT_EQ(batch.input.scalar_type(), dtype);
      EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({batch.size, 2, 3, 5}));
      EXPECT_EQ(batch.target.sizes(), at::IntArrayRef({batch.size}));
      const auto expected =
          batch.target.to(dtype).div(255).sub(0.25).div(0.5).view({-1, 1, 1, 1}).expand_as(batch.input);
      EXPECT_TRUE(at::equal(batch.input, expected)) << "not bit for bit (x / 255 - mean) / deviation";
      seen += batch.size;
    }
    EXPECT_EQ(seen, 200);
    EXPECT_EQ(loader.batches_per_epoch(), 7);
  }
}

TEST_P(LoaderWithWorkers, BR006_EpochsAdvanceByThemselvesInPythonsOrder) {
  Loader loader(numbered(22), {.batch_size = 4, .num_replicas = 2, .rank = 1, .seed = 5, .workers = GetParam()});
  const DistributedSampler sampler({.length = 22, .num_replicas = 2, .rank = 1, .seed = 5});
  // By next_epoch(), by a loop over the loader itself, and by number: all reach the order.
  EXPECT_EQ(labels_of(loader.next_epoch()), sampler.indices(0));
  std::vector<std::int64_t> looped;
  for (const Batch& batch : loader) {
    const auto more = labels_of(batch);
    looped.insert(looped.end(), more.begin(), more.end());
  }
  EXPECT_EQ(looped, sampler.indices(1));
  EXPECT_EQ(labels_of(loader.epoch(7)), sampler.indices(7));
  EXPECT_EQ(labels_of(loader.next_epoch()), sampler.indices(8));
  EXPECT_NE(sampler.indices(0), sampler.indices(1));
}

// Printed by torch.utils.data.DistributedSampler(range(8), 2, rank) after set_epoch(epoch); batches of 2 cut it in two.
const std::vector<std::int64_t> kEpochs[2][3] = {{{4, 7, 2, 1}, {5, 2, 7, 1}, {0, 7, 6, 1}},
                                                 {{0, 3, 5, 6}, {4, 6, 3, 0}, {4, 2, 5, 3}}};

TEST_P(LoaderWithWorkers, BR006_TheEpochReachesTheOrderInEveryWayOfUse) {
  const auto walk = [](auto& batches) {
    std::vector<std::int64_t> labels;
    for (const Batch& batch : batches) {
      EXPECT_EQ(batch.size, 2);
      const auto more = labels_of(batch);
      labels.insert(labels.end(), more.begin(), more.end());
    }
    return labels;
  };
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    const auto& expected = kEpochs[rank];
    const auto make = [&] {
      return Loader(numbered(8), {.batch_size = 2, .num_replicas = 2, .rank = rank, .workers = GetParam()});
    };
    Loader by_number = make(), by_itself = make(), looped = make(), referred_to = make(), moved_from = make();
    Loader& reference = referred_to;
    for (const std::int64_t epoch : {2, 0, 1, 2}) EXPECT_EQ(labels_of(by_number.epoch(epoch)), expected[epoch]);
    for (int epoch = 0; epoch < 3; ++epoch) {
      EXPECT_EQ(by_itself.next_epoch_number(), epoch);
      EXPECT_EQ(labels_of(by_itself.next_epoch()), expected[epoch]);
      EXPECT_EQ(walk(looped), expected[epoch]) << "a loop over the loader itself";
      EXPECT_EQ(walk(reference), expected[epoch]) << "by reference";
    }
    // A loader that moves on takes its epoch with it.
    EXPECT_EQ(labels_of(moved_from.next_epoch()), expected[0]);
    Loader moved = std::move(moved_from);
    EXPECT_EQ(labels_of(moved.next_epoch()), expected[1]);
    moved = std::move(by_itself);
    EXPECT_EQ(moved.next_epoch_number(), 3);
    EXPECT_EQ(labels_of(moved.epoch(2)), expected[2]);
    // Starting over, also out of the middle of an epoch.
    moved.next_epoch().next();
    EXPECT_EQ(labels_of(moved.epoch(0)), expected[0]);
    EXPECT_EQ(labels_of(moved.next_epoch()), expected[1]);
  }
}

TEST_P(LoaderWithWorkers, StartsAtAnyBatch) {
  Loader loader(numbered(22), {.batch_size = 4, .seed = 5, .workers = GetParam()});
  const auto whole = labels_of(loader.epoch(2));
  for (std::int64_t first = 0; first <= 6; ++first) {
    const auto rest = labels_of(loader.epoch(2, first));
    EXPECT_TRUE(
        std::equal(rest.begin(), rest.end(), whole.begin() + std::min<std::int64_t>(4 * first, 22), whole.end()));
  }
  EXPECT_THAT(config_error([&] { loader.epoch(2, 7); }), HasSubstr("first batch is 7, expected 0 to 6"));
  EXPECT_THAT(config_error([&] { loader.epoch(-1); }), HasSubstr("epoch is -1"));
}

TEST_P(LoaderWithWorkers, BR055_EvaluationSeesEverySampleOnce) {
  for (const std::int64_t length : {1, 10, 101}) {
    for (const std::int64_t world : {1, 2, 3, 4, 8}) {
      std::vector<std::int64_t> seen;
      for (std::int64_t rank = 0; rank < world; ++rank) {
        auto loader = Loader::for_evaluation(
            numbered(length), {.batch_size = 4, .num_replicas = world, .rank = rank, .workers = GetParam()});
        const auto mine = labels_of(loader.epoch(0));
        EXPECT_EQ(std::ssize(mine), loader.samples_per_epoch());
        seen.insert(seen.end(), mine.begin(), mine.end());
      }
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), static_cast<std::size_t>(length));
      EXPECT_EQ(std::ssize(seen), length);
    }
  }
}

TEST_P(LoaderWithWorkers, KeptBatchesAreNotWrittenAgain) {
  Loader loader(numbered(200), {.batch_size = 8, .workers = GetParam()});
  std::vector<Batch> kept;
  std::vector<at::Tensor> views;  // a view alone must hold the memory too
  std::vector<at::Tensor> copies;
  for (int round = 0; round < 3; ++round) {
    for (const Batch& batch : loader) {
      if (batch.index % 5 == 0) kept.push_back(batch);
      if (batch.index % 5 == 1) {
        views.push_back(batch.input.narrow(0, 0, 1));
        copies.push_back(views.back().clone());
      }
    }
  }
  for (const Batch& batch : kept) {
    EXPECT_TRUE(at::equal(batch.input.select(1, 0).select(1, 0).select(1, 0),
                          batch.target.to(at::kFloat).div(255).sub(0.25).div(0.5)));
  }
  for (std::size_t i = 0; i < views.size(); ++i) EXPECT_TRUE(at::equal(views[i], copies[i]));
}

TEST_P(LoaderWithWorkers, LeavingAnEpochEarlyLeavesNoThread) {
  const int before = num_threads();
  Loader loader(numbered(200), {.batch_size = 2, .workers = GetParam(), .prefetch = 3});
  for (int round = 0; round < 20; ++round) {
    for (const Batch& batch : loader) {
      EXPECT_LE(num_threads(), before + GetParam());
      if (batch.index == round) break;
    }
    EXPECT_TRUE(threads_fall_to(before));
  }
}

TEST_P(LoaderWithWorkers, EpochMayOutliveItsLoader) {
  std::optional<Loader> loader(std::in_place, numbered(50), LoaderOptions{.batch_size = 7, .workers = GetParam()});
  auto epoch = loader->epoch(0);
  loader.reset();
  EXPECT_EQ(labels_of(std::move(epoch)).size(), 50U);
}

TEST_P(LoaderWithWorkers, ErrorsReachTheConsumerInTheirPlace) {
  BatchStream stream(
      [](std::int64_t index) {
        if (index == 3) throw std::runtime_error("batch three");
        return Batch{{}, {}, 1, index};
      },
      0, 10, GetParam(), 4);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stream.next()->index, i);
  try {
    stream.next();
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "batch three");
  }
  EXPECT_FALSE(stream.next().has_value());
}

TEST_P(LoaderWithWorkers, StaysWithinItsPrefetch) {
  std::atomic<std::int64_t> given{0};
  std::atomic<std::int64_t> furthest{0};
  BatchStream stream(
      [&](std::int64_t index) {
        const std::int64_t ahead = index - given.load();
        std::int64_t most = furthest.load();
        while (ahead > most && !furthest.compare_exchange_weak(most, ahead)) {
        }
        return Batch{{}, {}, 1, index};
      },
      0, 500, GetParam(), 5);
  while (stream.next()) ++given;
  EXPECT_EQ(given, 500);
  EXPECT_LE(furthest, 5);
}

TEST(Loader, DropLastDropsBothTails) {
  // 23 samples on 2 ranks: 11 each without the uneven one; 2 batches of 4 without the short one.
  Loader loader(numbered(23), {.batch_size = 4, .num_replicas = 2, .drop_last = true});
  EXPECT_EQ(loader.samples_per_epoch(), 11);
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  EXPECT_EQ(labels_of(loader.epoch(0)).size(), 8U);
  Loader padded(numbered(23), {.batch_size = 4, .num_replicas = 2});
  EXPECT_EQ(padded.batches_per_epoch(), 3);
  EXPECT_EQ(labels_of(padded.epoch(0)).size(), 12U);
}

TEST(Loader, WalksInOrderWithoutShuffling) {
  Loader loader(numbered(5), {.batch_size = 2, .shuffle = false});
  EXPECT_THAT(labels_of(loader.epoch(3)), ElementsAre(0, 1, 2, 3, 4));
}

TEST(Loader, ABatchLargerThanTheDataSetIsOneShortBatch) {
  Loader loader(numbered(5), {.batch_size = std::int64_t{1} << 60});
  EXPECT_EQ(loader.batches_per_epoch(), 1);
  EXPECT_EQ(labels_of(loader.epoch(0)).size(), 5U);
}

TEST(Loader, RefusesBadOptionsByName) {
  const auto error_for = [](LoaderOptions options) { return config_error([&] { Loader(numbered(10), options); }); };
  EXPECT_THAT(error_for({.batch_size = 0}), HasSubstr("batch_size is 0, expected 1 or more"));
  EXPECT_THAT(error_for({.batch_size = -3}), HasSubstr("batch_size is -3"));
  EXPECT_THAT(error_for({.num_replicas = 2, .rank = 2}), HasSubstr("rank is 2, expected 0 to 1"));
  EXPECT_THAT(error_for({.workers = -1}), HasSubstr("workers is -1, expected 0 to 256"));
  EXPECT_THAT(error_for({.prefetch = 0}), HasSubstr("prefetch is 0, expected 1 to 1024"));
  EXPECT_THAT(error_for({.dtype = at::kHalf}), HasSubstr("dtype is Half, expected Float or Double"));
  EXPECT_THAT(error_for({.batch_size = 6, .num_replicas = 2, .drop_last = true}),
              HasSubstr("drop_last leaves no batch: batch_size is 6, but this rank has 5 of the 10 samples"));
  EXPECT_THAT(config_error([] { Loader(nullptr, {}); }), HasSubstr("no data set"));
}

TEST(BufferPool, HandsABlockOutAgainOnlyWhenNobodyRefersToIt) {
  auto pool = BufferPool::make(64, 2);
  auto first = pool->acquire();
  auto copy = first;
  const auto* address = first.get();
  first.reset();
  EXPECT_NE(pool->acquire().get(), address);
  copy.reset();
  EXPECT_EQ(pool->acquire().get(), address);
  auto last = pool->acquire();
  pool.reset();
  *last = std::byte{1};  // outlives the pool
}

}  // namespace
}  // namespace lockstep::data
