#include "lockstep/data/loader.h"

#include <algorithm>
#include <variant>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/gather.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {

namespace {

constexpr int kMaxWorkers = 256;
constexpr int kMaxPrefetch = 1024;

SamplerOptions sampler_options(const ImageDataset& dataset, const LoaderOptions& options) {
  return {.length = dataset.size(),
          .num_replicas = options.num_replicas,
          .rank = options.rank,
          .seed = options.seed,
          .shuffle = options.shuffle,
          .drop_last = options.drop_last};
}

void check_options(const LoaderOptions& options) {
  const auto check = [](const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value < low || value > high) {
      throw ConfigError(text("loader: ", name, " is ", value, ", expected ", low, " to ", high));
    }
  };
  if (options.batch_size < 1) {
    throw ConfigError(text("loader: batch_size is ", options.batch_size, ", expected 1 or more"));
  }
  check("workers", options.workers, 0, kMaxWorkers);
  check("prefetch", options.prefetch, 1, kMaxPrefetch);
  if (options.dtype != at::kFloat && options.dtype != at::kDouble) {
    throw ConfigError(text("loader: dtype is ", c10::toString(options.dtype), ", expected Float or Double"));
  }
}

std::size_t round_up(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

/// Makes a batch out of a list of indices, in memory from a pool. Thread-safe.
class Loader::BatchMaker {
 public:
  BatchMaker(DatasetPtr dataset, const LoaderOptions& options, std::int64_t largest_batch)
      : dataset_(std::move(dataset)),
        dtype_(options.dtype),
        input_bytes_(round_up(static_cast<std::size_t>(largest_batch * dataset_->pixels[0].numel()) *
                              c10::elementSize(options.dtype))),
        // Those made ahead, those in the making, and the consumer's current and last one.
        pool_(BufferPool::make(input_bytes_ + static_cast<std::size_t>(largest_batch) * sizeof(std::int64_t),
                               static_cast<std::size_t>(options.prefetch + options.workers + 2))) {
    if (dtype_ == at::kDouble) {
      gather_.emplace<BatchGather<double>>(*dataset_);
    } else {
      gather_.emplace<BatchGather<float>>(*dataset_);
    }
  }

  Batch make(const std::int64_t* indices, std::int64_t size, std::int64_t index) const {
    const std::shared_ptr<std::byte> block = pool_->acquire();
    auto* target = reinterpret_cast<std::int64_t*>(block.get() + input_bytes_);
    std::visit([&](const auto& gather) { run(gather, indices, size, block.get(), target); }, gather_);
    const auto keep = [block](void*) {};  // both tensors share the block; it is released with the last of them
    return {
        at::from_blob(block.get(), {size, dataset_->channels(), dataset_->height(), dataset_->width()}, keep, dtype_),
        at::from_blob(target, {size}, keep, at::kLong), size, index};
  }

 private:
  template <typename Scalar>
  static void run(const BatchGather<Scalar>& gather, const std::int64_t* indices, std::int64_t size, std::byte* input,
                  std::int64_t* target) {
    gather(indices, size, reinterpret_cast<Scalar*>(input), target);
  }
  static void run(std::monostate, const std::int64_t*, std::int64_t, std::byte*, std::int64_t*) {}

  DatasetPtr dataset_;
  at::ScalarType dtype_;
  std::size_t input_bytes_;
  std::shared_ptr<BufferPool> pool_;
  std::variant<std::monostate, BatchGather<float>, BatchGather<double>> gather_;
};

Loader::Loader(DatasetPtr dataset, LoaderOptions options) : Loader(std::move(dataset), options, Order::kSampler) {}

Loader Loader::for_evaluation(DatasetPtr dataset, LoaderOptions options) {
  options.shuffle = false;
  options.drop_last = false;
  return Loader(std::move(dataset), options, Order::kExactShard);
}

Loader::Loader(DatasetPtr dataset, LoaderOptions options, Order order)
    : dataset_(std::move(dataset)), options_(options), order_(order) {
  if (!dataset_) throw ConfigError("loader: there is no data set");
  check_options(options_);
  num_samples_ = order == Order::kSampler ? DistributedSampler(sampler_options(*dataset_, options_)).num_samples()
                                          : static_cast<std::int64_t>(indices_of(0).size());
  const std::int64_t whole = num_samples_ / options_.batch_size;
  num_batches_ = options_.drop_last || num_samples_ % options_.batch_size == 0 ? whole : whole + 1;
  if (num_batches_ == 0 && order == Order::kSampler) {
    throw ConfigError(text("loader: drop_last leaves no batch: batch_size is ", options_.batch_size,
                           ", but this rank has ", num_samples_, " of the ", dataset_->size(), " samples"),
                      "use a smaller batch_size (--batch-size), or no drop_last (--drop-last)");
  }
  maker_ = std::make_shared<const BatchMaker>(dataset_, options_, std::min(options_.batch_size, num_samples_));
}

std::vector<std::int64_t> Loader::indices_of(std::int64_t epoch) const {
  if (order_ == Order::kExactShard) {
    return exact_shard(dataset_->size(), options_.num_replicas, options_.rank, options_.batch_size);
  }
  return DistributedSampler(sampler_options(*dataset_, options_)).indices(epoch);
}

Loader::Epoch Loader::epoch(std::int64_t number, std::int64_t first_batch) {
  if (number < 0) throw ConfigError(text("loader: epoch is ", number, ", expected 0 or more"));
  if (first_batch < 0 || first_batch > num_batches_) {
    throw ConfigError(text("loader: first batch is ", first_batch, ", expected 0 to ", num_batches_));
  }
  next_epoch_ = number + 1;
  auto make = [maker = maker_, indices = indices_of(number), batch_size = options_.batch_size](std::int64_t index) {
    const std::int64_t begin = index * batch_size;
    const std::int64_t size = std::min(batch_size, static_cast<std::int64_t>(indices.size()) - begin);
    return maker->make(indices.data() + begin, size, index);
  };
  return Epoch(
      std::make_shared<BatchStream>(std::move(make), first_batch, num_batches_, options_.workers, options_.prefetch));
}

Loader::Epoch Loader::next_epoch() {
  return epoch(next_epoch_);
}

}  // namespace lockstep::data
