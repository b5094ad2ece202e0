#pragma once

#include "tessera/cost/cluster.h"

namespace tessera::planner {

/// What the runtime of this version can execute. The planner asks here wherever
/// that matters: when it searches for strategies that must run, when it explains
/// why one does not, and when it writes a configuration.
struct RuntimeAbilities {
  bool tensor_parallelism = false;
  bool optimizer_sharding = false;
  /// Of parameters and gradients too; `sharding_refusal` says with which degrees.
  bool parameter_sharding = false;
  /// Replicas may take unlike numbers of samples.
  bool unlike_samples = false;
  /// Layers may stay whole where others are divided.
  bool whole_layers = false;
  bool activation_checkpointing = false; // of all layers, by a configuration key
  bool activation_offloading = false; // of what recomputed layers keep
  /// Layers that share parameters may be on different pipeline ranks.
  bool shared_parameters_apart = false;
  /// 1F1B: stages run in a fixed order and hold at most pp - stage microbatches.
  bool fixed_order = false;
};

/// Returns the abilities. One that has a configuration key follows the key's
/// status, so that plans use it as soon as the key is available.
RuntimeAbilities runtime_abilities();

/// Returns whether the cluster says how every device reaches its host, and how much of the host's
/// memory it may fill, without which offloading has no price.
bool hosts_are_known(const cost::Cluster& cluster);

} // namespace tessera::planner
