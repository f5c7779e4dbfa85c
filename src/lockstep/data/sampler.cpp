#include "lockstep/data/sampler.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {

namespace {

void check_arguments(std::int64_t length, std::int64_t num_replicas, std::int64_t rank) {
  if (num_replicas < 1) throw ConfigError(text("sampler: num_replicas is ", num_replicas, ", expected 1 or more"));
  if (rank < 0 || rank >= num_replicas) {
    throw ConfigError(text("sampler: rank is ", rank, ", expected 0 to ", num_replicas - 1));
  }
  if (length < 1) throw ConfigError(text("sampler: the data set has ", length, " samples, expected 1 or more"));
}

}  // namespace

DistributedSampler::DistributedSampler(const SamplerOptions& options) : options_(options) {
  check_arguments(options.length, options.num_replicas, options.rank);
  if (options.drop_last && options.length < options.num_replicas) {
    throw ConfigError(
        text("sampler: drop_last leaves nothing of ", options.length, " samples on ", options.num_replicas, " ranks"),
        "use fewer ranks (--nproc), or no drop_last (--drop-last)");
  }
  const std::int64_t whole = options.length / options.num_replicas;
  const bool even = options.length % options.num_replicas == 0;
  num_samples_ = even || options.drop_last ? whole : whole + 1;
}

std::vector<std::int64_t> DistributedSampler::indices(std::int64_t epoch) const {
  std::vector<std::int64_t> mine(static_cast<std::size_t>(num_samples_));
  // Position p of the padded permutation holds element p mod length: padding wraps as often as needed.
  const auto place = [&](std::size_t i) {
    return (options_.rank + static_cast<std::int64_t>(i) * options_.num_replicas) % options_.length;
  };
  if (!options_.shuffle) {
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = place(i);
    return mine;
  }
  const at::Generator generator = at::detail::createCPUGenerator(options_.seed + static_cast<std::uint64_t>(epoch));
  const at::Tensor permutation = at::randperm(options_.length, generator, at::kLong);
  const auto* order = permutation.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = order[place(i)];
  return mine;
}

std::vector<std::int64_t> exact_shard(std::int64_t length, std::int64_t num_replicas, std::int64_t rank,
                                      std::int64_t batch_size) {
  check_arguments(length, num_replicas, rank);
  if (batch_size < 1) throw ConfigError(text("sampler: batch_size is ", batch_size, ", expected 1 or more"));
  std::vector<std::int64_t> mine;
  const std::int64_t num_batches = (length - 1) / batch_size + 1;
  for (std::int64_t batch = rank; batch < num_batches; batch += num_replicas) {
    const std::int64_t begin = batch * batch_size;
    const std::int64_t size = std::min(batch_size, length - begin);
    for (std::int64_t i = 0; i < size; ++i) mine.push_back(begin + i);
  }
  return mine;
}

}  // namespace lockstep::data
