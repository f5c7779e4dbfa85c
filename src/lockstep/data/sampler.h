#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

struct SamplerOptions {
  std::int64_t length = 0;        ///< samples in the data set
  std::int64_t num_replicas = 1;  ///< ranks that share it
  std::int64_t rank = 0;
  std::uint64_t seed = 0;  ///< equal on all ranks
  bool shuffle = true;
  bool drop_last = false;  ///< drop the tail that does not divide by num_replicas instead of padding it
};

/// The order of torch.utils.data.DistributedSampler, index for index: one permutation for each epoch from a generator
/// seeded with seed + epoch, padded with its own beginning (as often as needed) until it divides by the ranks, of which
/// rank r takes r, r + ranks, and so on. Every rank gets equally many.
///
/// Immutable: the epoch is an argument, so none can be forgotten.
class DistributedSampler {
 public:
  /// Throws ConfigError that names the wrong argument: no samples, num_replicas below 1, rank outside
  /// [0, num_replicas), drop_last with fewer samples than ranks (which would leave an empty epoch).
  explicit DistributedSampler(const SamplerOptions& options);

  /// Samples that each rank sees in an epoch.
  std::int64_t num_samples() const noexcept { return num_samples_; }

  /// The samples of this rank in `epoch` (from 0), num_samples() of them.
  std::vector<std::int64_t> indices(std::int64_t epoch) const;

 private:
  SamplerOptions options_;
  std::int64_t num_samples_ = 0;
};

/// The part of `rank` in an exact evaluation: of the data set cut into batches of `batch_size`, the last one maybe
/// shorter, the batches rank, rank + num_replicas, ... Over all ranks every sample comes exactly once. The batches are
/// the same for every num_replicas, and with them what a model makes of them, to the last bit; parts differ by at most
/// one batch, and may be empty. Throws ConfigError as DistributedSampler does, and for a batch_size below 1.
std::vector<std::int64_t> exact_shard(std::int64_t length, std::int64_t num_replicas, std::int64_t rank,
                                      std::int64_t batch_size);

}  // namespace lockstep::data
