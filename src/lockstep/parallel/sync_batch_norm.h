#pragma once

#include "lockstep/comm/communicator.h"

namespace lockstep::parallel {

/// While one lives, every batch normalisation in training mode that this thread computes (torch::nn::BatchNorm1d to 3d,
/// torch::batch_norm, inside a TorchScript module too) takes its statistics over the samples of all ranks, each rank
/// weighing by its number of values, forward and backward. Nothing in the model has to be changed or replaced: the
/// operation itself is intercepted. Evaluation mode and instance normalisation are untouched, and so are other threads.
///
/// Statistics are computed in fp32 (fp64 for fp64) and merged as in Chan, Golub & LeVeque 1979; running averages get
/// the variance over all samples, the same on every rank. A rank may have an empty batch. (torch::nn's layers refuse a
/// rank's batch of one value a channel by themselves, before they come to the operation.)
///
/// `communicator` is borrowed; it must also outlive the backward passes of what was computed under the scope. Every
/// rank must compute the same normalisations in the same order. Scopes nest; the inner one holds. Throws CommError, and
/// ConfigError when all ranks together bring one value a channel, of which there is no variance.
class SyncBatchNormScope {
 public:
  explicit SyncBatchNormScope(comm::Communicator& communicator);
  ~SyncBatchNormScope();
  SyncBatchNormScope(const SyncBatchNormScope&) = delete;
  SyncBatchNormScope& operator=(const SyncBatchNormScope&) = delete;

 private:
  comm::Communicator* outer_;
  bool was_included_;
};

}  // namespace lockstep::parallel
