#pragma once

#include <set>
#include <string>
#include <vector>

namespace tessera::equivalence {

/// What a case may have beside a tree, a pipeline, data parallelism, a partition, a schedule and
/// buffers. The words are those of `--features`.
enum class Feature {
  kRecompute, // activation checkpointing: flagged modules, calls, attentions
  kOffload, // of what is kept for recomputation
  kClip, // gradients, to a norm
  kOptimizer, // others than SGD with momentum, groups of parameters
  kBetween, // what a script does between steps
  kUneven, // rows that differ between replicas and between steps
  kShardState, // shard_optimizer_state
  kShardParameters, // sharded_data_parallel_degree
  kTensor, // tensor parallelism, in a line or on a mesh
  kHalf, // bf16 or fp16
  kResume, // a checkpoint, and another layout after it
  kDropout, // random: layout_independent
  kOperations, // partition_mode: operations
  kShares, // replica_samples
  kNormwise, // LAMB or NovoGrad
  kHook, // register_comm_hook
  kJoin, // replicas that are out of data before others
};

using Features = std::set<Feature>;

/// All, in the order above.
const std::vector<Feature>& all_features();
std::string to_text(Feature feature);
std::string to_text(const Features& features);
/// "all", "none", or words with commas between.
/// Throws: std::invalid_argument naming a word that is none.
Features features_of(const std::string& text);

} // namespace tessera::equivalence
