#pragma once

#include <memory>

#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

enum class ZeroStage {
  kOptimizer,  ///< zero1: optimizer state is sharded
  kGradients,  ///< zero2: gradients too; each micro-batch's are reduced at once, so there is nothing to put off
};

/// The ZeRO redundancy optimizer (Rajbhandari et al. 2020), stages 1 and 2: gradients are reduce-scattered in buckets
/// while backward runs, every rank updates its part of each bucket and all gather the new values. Any world size; a
/// rank may own nothing. `communicator` is borrowed. Throws ConfigError when `options` carry a communication hook.
std::unique_ptr<Strategy> make_zero(comm::Communicator& communicator, ZeroStage stage, const DdpOptions& options);

}  // namespace lockstep::parallel
