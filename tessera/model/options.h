#pragma once

#include <string>

namespace tessera {

/// How a model is wrapped. Names and defaults follow the library's documentation of
/// `DistributedModel`, but for the default of gradient_as_bucket_view
/// (docs/adr/0182-options-of-ddp.md).
struct ModelOptions {
  /// Gradients travel while the backward runs, not at the end of the step.
  bool overlapping_allreduce = true;
  /// Steps whose gradients add up before data-parallel ranks average them.
  int backward_passes_per_step = 1;
  /// Divide gradients by the number of microbatches; false: their sum.
  bool average_grads_across_microbatches = true;
  /// Units: MiB.
  double bucket_cap_mb = 25;
  /// Gradients are views of the buckets in which they travel, so that nothing is copied back.
  /// false: each is a tensor of its own beside them, and the one that a parameter has keeps its
  /// memory from step to step, as with torch's default. With sharded_data_parallel_degree true
  /// only.
  bool gradient_as_bucket_view = true;
  /// A step may pass parameters over: those that no backward reaches hold nothing up. false: a
  /// parameter that needs a gradient and that the backward passes between two averages do not reach
  /// on some rank is an error on all ranks, at the end of the step. Where there are no replicas
  /// nothing is averaged or checked. With sharded_data_parallel_degree true only.
  bool find_unused_parameters = true;
  /// Training steps begin with the buffers of the first data-parallel rank.
  bool broadcast_buffers = true;
  /// Tells the models of a process apart in messages and timelines; empty: the name of the class.
  std::string name = {};
};

} // namespace tessera
