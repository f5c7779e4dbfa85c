#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>

#include "lockstep/data/batch_stream.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep::data {

struct LoaderOptions {
  std::int64_t batch_size = 32;   ///< samples a rank and batch
  std::int64_t num_replicas = 1;  ///< ranks that share the data set
  std::int64_t rank = 0;
  std::uint64_t seed = 0;  ///< of the order; equal on all ranks
  bool shuffle = true;
  bool drop_last = false;             ///< drop the sampler's uneven tail and the last short batch
  int workers = 1;                    ///< threads that make batches ahead; 0 makes them in the caller
  int prefetch = 4;                   ///< batches made ahead
  at::ScalarType dtype = at::kFloat;  ///< of the input: kFloat or kDouble
};

/// Batches of a data set for one rank, in the order of DistributedSampler. Input tensors live in memory that goes
/// round: it is used again once no tensor refers to it, so a batch may be kept for as long as you like.
///
/// Batches are CPU tensors. One consumer thread a loader; the data set may be shared by any number of loaders.
class Loader {
 public:
  /// The batches of one epoch, to be walked once: `for (const Batch& batch : loader.epoch(3))`. May outlive the loader.
  /// Leaving the loop early stops the threads.
  class Epoch {
   public:
    class Iterator {
     public:
      using iterator_category = std::input_iterator_tag;
      using value_type = Batch;
      using difference_type = std::ptrdiff_t;

      Iterator() = default;
      explicit Iterator(std::shared_ptr<BatchStream> stream) : stream_(std::move(stream)) { ++*this; }

      const Batch& operator*() const { return *batch_; }
      const Batch* operator->() const { return &*batch_; }
      Iterator& operator++() {
        batch_.reset();  // first, so that its memory is free for the batch after next
        batch_ = stream_->next();
        return *this;
      }
      void operator++(int) { ++*this; }
      friend bool operator==(const Iterator& iterator, std::default_sentinel_t) { return !iterator.batch_.has_value(); }

     private:
      std::shared_ptr<BatchStream> stream_;
      std::optional<Batch> batch_;
    };

    Iterator begin() const { return Iterator(stream_); }
    std::default_sentinel_t end() const { return {}; }

    /// nullopt at the end of the epoch.
    std::optional<Batch> next() { return stream_->next(); }

   private:
    friend class Loader;
    explicit Epoch(std::shared_ptr<BatchStream> stream) : stream_(std::move(stream)) {}
    std::shared_ptr<BatchStream> stream_;
  };

  /// Throws ConfigError that names the wrong option: batch_size below 1, a rank outside the world, drop_last that
  /// leaves no batch, workers, prefetch or dtype outside what is accepted.
  Loader(DatasetPtr dataset, LoaderOptions options);

  /// For exact evaluation: no shuffling, no padding, nothing dropped; over all ranks every sample comes exactly once,
  /// so ranks may differ by a batch and a rank may have none. Batch i of rank r is batch i * num_replicas + r of the
  /// data set, whatever the world size. `options.shuffle` and `options.drop_last` are ignored.
  static Loader for_evaluation(DatasetPtr dataset, LoaderOptions options);

  /// Epoch `number` (from 0), from batch `first_batch` on; nothing is decoded for the batches before it. next_epoch()
  /// then continues after it. Throws ConfigError for a number below 0 or a first batch outside
  /// [0, batches_per_epoch()].
  Epoch epoch(std::int64_t number, std::int64_t first_batch = 0);

  /// Epoch 0, 1, 2, ... by itself, each in an order of its own. A loop over the loader itself does the same.
  Epoch next_epoch();
  Epoch::Iterator begin() { return next_epoch().begin(); }
  std::default_sentinel_t end() const { return {}; }

  /// The number that next_epoch() will walk.
  std::int64_t next_epoch_number() const noexcept { return next_epoch_; }

  std::int64_t batches_per_epoch() const noexcept { return num_batches_; }
  /// Samples that this rank sees in an epoch, padding included.
  std::int64_t samples_per_epoch() const noexcept { return num_samples_; }

  const ImageDataset& dataset() const noexcept { return *dataset_; }
  const LoaderOptions& options() const noexcept { return options_; }

 private:
  class BatchMaker;
  enum class Order { kSampler, kExactShard };

  Loader(DatasetPtr dataset, LoaderOptions options, Order order);
  std::vector<std::int64_t> indices_of(std::int64_t epoch) const;

  DatasetPtr dataset_;
  LoaderOptions options_;
  Order order_;
  std::int64_t num_samples_ = 0;
  std::int64_t num_batches_ = 0;
  std::int64_t next_epoch_ = 0;
  std::shared_ptr<const BatchMaker> maker_;
};

}  // namespace lockstep::data
