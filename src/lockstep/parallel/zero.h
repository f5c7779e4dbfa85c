#pragma once

#include <memory>

#include "lockstep/parallel/strategy.h"

namespace lockstep::parallel {

enum class ZeroStage {
  kOptimizer,  ///< zero1: optimizer state is sharded
  kGradients,  ///< zero2: gradients too; each micro-batch's are reduced at once, so there is nothing to put off
};

/// How ranks share an engine's work.
enum class Sharding {
  kNone,       ///< ddp: every rank holds everything
  kOptimizer,  ///< zero1: optimizer state is divided among the ranks
  kGradients,  ///< zero2: gradients too
};

/// The strategy for these ranks; of one rank it is `single`. `communicator` is borrowed.
std::unique_ptr<Strategy> make_strategy(comm::Communicator& communicator, Sharding sharding, const DdpOptions& options);

/// The ZeRO redundancy optimizer (Rajbhandari et al. 2020), stages 1 and 2: gradients are reduce-scattered in buckets
/// while backward runs, every rank updates its part of each bucket and all gather the new values. Any world size; a
/// rank may own nothing. `communicator` is borrowed. Throws ConfigError when `options` carry a communication hook.
std::unique_ptr<Strategy> make_zero(comm::Communicator& communicator, ZeroStage stage, const DdpOptions& options);

}  // namespace lockstep::parallel
