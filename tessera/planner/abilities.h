#pragma once

namespace tessera::planner {

/// What the runtime of this version can execute, in one place: searches for
/// strategies that must run, the reasons why one does not, and what is written
/// all ask here.
struct RuntimeAbilities {
  bool tensor_parallelism = false;
  bool optimizer_sharding = false;
  bool activation_checkpointing = false; // chosen by a configuration
  /// Layers that share parameters on different pipeline ranks.
  bool shared_parameters_apart = false;
  /// Stages that hold at most pp - stage microbatches in a fixed order.
  bool fixed_order = false;
};

/// Follows the table of configuration keys where a key stands for the ability:
/// the day a key is available, plans may use it.
RuntimeAbilities runtime_abilities();

} // namespace tessera::planner
