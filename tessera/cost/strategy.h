#pragma once

#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tessera/cost/described_model.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::cost {

enum class Schedule {
  kInterleaved, // one forward, one backward
  kSimple, // all forwards first
  kCustom // a given order, which itself determines what is in flight
};

constexpr std::array<std::string_view, 3> choice_names(Schedule /*type*/) {
  return {"interleaved", "simple", "custom"};
}

/// How a model is trained on a cluster.
/// Source: Li et al. 2022, equation (2), which has degrees, sizes and placement only.
struct Strategy {
  int pp = 1;
  int dp = 1;
  int tp = 1;
  int microbatch_size = 1;
  /// The samples of a microbatch of each replica, where they differ; microbatch_size is then the
  /// most of them. Empty: microbatch_size.
  std::vector<int> replica_microbatch = {};
  /// How many stages each pipeline rank holds: stage k is on rank k modulo pp ("virtual stages",
  /// dealt in turns).
  int stages_per_rank = 1;
  /// pp x stages_per_rank + 1 indices into the layers; stage k runs [b_k, b_(k+1)).
  std::vector<int> boundaries = {};
  /// Virtual rank -> device. The virtual rank of (pipeline rank, replica, tensor) is
  /// (pipeline rank * dp + replica) * tp + tensor.
  std::vector<int> device_of_rank = {};
  /// The placement strategy that gives device_of_rank; "" if none does.
  std::string placement = "PDT";
  Schedule schedule = Schedule::kInterleaved;
  /// For kInterleaved. 0 means 1F1B: stages keep its fixed order, in which stage k
  /// holds at most pp - k microbatches. 1 or more means the runtime's order: stages
  /// run what is ready, backwards first, and any stage may hold this many
  /// microbatches.
  int active_microbatches = 0;
  /// Of a model that returns home (DescribedModel::returns_home): whether stages send to each other
  /// and not through stage 0, as the runtime's fast mode does.
  bool fast_mode = false;
  /// With tp > 1, for a traced model or one of sizes: how modules are distributed; for a traced
  /// one also whether the ranks of a tensor-parallel group bring the same samples.
  Distribution distribution = Distribution::kAsMeasured;
  bool same_samples = false;
  /// Which layers stay whole on every rank of a tensor-parallel group, which runs them with its own
  /// samples. Of a traced model whose ranks bring their own; the first layer is never one of them.
  /// Empty: none.
  std::vector<bool> whole_layers = {};
  bool activation_checkpointing = true;
  /// With activation_checkpointing: whether the results of products with weights are kept too and
  /// not computed again (selective recomputation).
  bool keeps_products = false;
  bool shard_optimizer_state = false;
  /// Whether each replica keeps a part of the parameters and gradients too, and gathers the others
  /// layer by layer (with shard_optimizer_state).
  bool shard_parameters = false;
  /// Whether gradients are reduced in buckets while the last microbatch's backward still runs.
  bool overlap_gradients = false;
  /// Whether the optimizer's state stays in the host's memory, from which the step streams it
  /// through the device and back.
  bool offload_optimizer_state = false;
  /// Whether what forwards keep waits in the host's memory for its backward; with
  /// activation_checkpointing what the layers that are recomputed keep.
  bool offload_activations = false;

  int devices() const {
    return pp * dp * tp;
  }
  int stages() const {
    return pp * stages_per_rank;
  }
  /// Returns the layers [first, last) of a stage.
  std::pair<int, int> layers_of(int stage) const {
    const auto at = static_cast<std::size_t>(stage);
    return {boundaries[at], boundaries[at + 1]};
  }
  /// Returns the virtual rank of a pipeline rank, which is the stage where ranks hold one.
  int rank(int pipeline_rank, int replica, int tensor) const {
    return (pipeline_rank * dp + replica) * tp + tensor;
  }
  int microbatch_of(int replica) const {
    return replica_microbatch.empty() ? microbatch_size
                                      : replica_microbatch[static_cast<std::size_t>(replica)];
  }
  /// Returns the samples of one microbatch of all replicas.
  int samples_together() const {
    return replica_microbatch.empty()
               ? dp * microbatch_size
               : std::accumulate(replica_microbatch.begin(), replica_microbatch.end(), 0);
  }
  bool is_whole(std::size_t layer) const {
    return layer < whole_layers.size() && whole_layers[layer];
  }
  int microbatches(int global_batch_size) const {
    return global_batch_size / samples_together();
  }
};

/// Returns Strategy::device_of_rank for devices in the order `device_order` and the
/// placement strategy `letters`, of which the right-most varies fastest.
/// Requires degrees that fill the cluster. Throws: ConfigError for other letters.
std::vector<int>
lay_out(const Strategy& strategy, const std::string& letters, const std::vector<int>& device_order);

/// Checks a strategy. Throws: ConfigError when degrees do not fill the cluster, when
/// the replicas' microbatches do not divide the batch, when boundaries are not ascending stages
/// over all layers, for several stages a rank in the fixed order of 1F1B, which says nothing of
/// turns, and for whole layers where nothing is divided or ranks bring the same samples.
void validate(const Strategy& strategy, int devices, int layers, int global_batch_size);

} // namespace tessera::cost
