#pragma once

#include "tessera/cost/cluster.h"
#include "tessera/cost/described_model.h"

namespace tessera::cost {

/// Physical properties of devices, links and training software that model and
/// cluster files do not hold. docs/planner.md gives the source of each; those that are fitted to
/// measured runs of strategies, and to which, are in docs/adr/0127-which-constants-are-fitted.md.
struct Constants {
  // -- Host --
  /// Operators of a transformer layer's forward, each of which the host launches
  /// (DeviceKind::launch_seconds). A layer of another kind has one.
  double transformer_operators = 27;

  // -- Links --
  /// Share of a link's nominal bandwidth that is payload.
  double link_efficiency = 0.8;
  /// Time of one step from sending to receiving.
  double link_latency_seconds = 20e-6;
  /// Share of a ring's rate at which trees carry an all-reduce between nodes.
  double tree_bandwidth_share = 0.92;

  // -- Optimizer --
  /// Bytes that the optimizer reads and writes in device memory for one parameter.
  double optimizer_traffic_bytes = 66;
  /// Share of the data sheet's bandwidth that streaming kernels reach.
  double memory_efficiency = 0.75;
  /// Bytes of one gradient in the all-reduce over replicas, here f32.
  double gradient_wire_bytes = 4;

  /// Bytes of one bucket in which gradients travel while a backward runs, the runtime's default.
  double gradient_bucket_bytes = 25.0 * (1 << 20);

  // -- Device memory --
  /// Bytes of the copies of one gradient that reducing and applying it needs: the
  /// half-precision bucket, the f32 copy, its flat buffer, and the f32 gradient of
  /// the master weights.
  double gradient_copies_bytes = 14;
  /// Share of a device's memory that a caching allocator can allocate before
  /// fragmentation stops it.
  double usable_memory_share = 0.85;
  /// Bytes that the driver's context, libraries and communicators take.
  double context_bytes = 1.0 * (1 << 30);
  /// Bytes of all copies of one logit, from the head to the gradient of the loss.
  double logit_bytes = 14;
  /// Bytes for each output element of the tensors alive while one layer is recomputed
  /// and run backward: those that every tensor-parallel rank holds whole, and those
  /// that are divided.
  double whole_working_bytes = 120;
  double divided_working_bytes = 24;
  /// Bytes that are kept for one attention score.
  double score_bytes = 5;

  // -- Models of which only sizes are known (SizedModel) --
  /// Share of the rate of large products that fused attention reaches.
  double attention_share = 0.45;
  /// Bytes moved for one attention score where scores are written to memory
  /// (AttentionKernels), in 16 bits: by a forward, and by a backward; and where scale, mask and
  /// softmax are one kernel.
  double score_forward_bytes = 21;
  double score_backward_bytes = 27;
  double fused_score_forward_bytes = 13;
  double fused_score_backward_bytes = 19;
  /// Bytes moved for one logit by casts, softmax, loss and their gradients.
  double loss_traffic_bytes = 56;
  /// Bytes moved for one logit by a metric over them: a cast, and a logarithm of the softmax whose
  /// kernel reads three times and writes once.
  double metric_traffic_bytes = 22;
  /// Bytes moved for one parameter when a microbatch's gradient is added to the sum, here f32.
  double accumulation_traffic_bytes = 12;
  /// Bytes of the f32 sum of one gradient.
  double gradient_sum_bytes = 4;
  /// Usable share of a device's memory: its allocator frees all that is cached before it fails.
  double packed_memory_share = 0.95;
  /// Time of one step to a device of the same node.
  double device_latency_seconds = 5e-6;
};

/// Returns the constants of Tessera's own runtime on a cluster. If the cluster was
/// measured, its figures replace the assumptions about described clusters.
Constants runtime_constants(const Cluster& cluster, Precision precision);

} // namespace tessera::cost
