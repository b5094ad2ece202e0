#pragma once

#include "tessera/cost/cluster.h"
#include "tessera/cost/described_model.h"

namespace tessera::cost {

/// Physical properties of devices, links and training software that the
/// described files do not hold. None is fitted to measured runs of strategies;
/// docs/planner.md gives the source of each.
struct Constants {
  // -- Host --
  /// Time the host needs to start the operators of one layer's forward: of a
  /// transformer layer, and of a layer that only moves data.
  double transformer_host_seconds = 2.0e-3;
  double other_host_seconds = 75e-6;

  // -- Links --
  /// Share of a link's nominal bandwidth that is payload.
  double link_efficiency = 0.8;
  /// From sending to receiving, one step.
  double link_latency_seconds = 20e-6;

  // -- Optimizer --
  /// Bytes that the step reads and writes in device memory for one parameter.
  double optimizer_traffic_bytes = 66;
  /// Share of the data sheet's bandwidth that streaming kernels reach.
  double memory_efficiency = 0.75;
  /// Gradients are summed over replicas in f32.
  double gradient_wire_bytes = 4;

  // -- Device memory --
  /// Copies of a gradient that reducing and applying it needs: the
  /// half-precision bucket, the f32 copy, its flat buffer, and the f32 gradient
  /// of the master weights.
  double gradient_copies_bytes = 14;
  /// Share of a device's memory that a caching allocator can hand out before
  /// fragmentation stops it.
  double usable_memory_share = 0.85;
  /// Taken by the driver's context, libraries and communicators.
  double context_bytes = 1.0 * (1 << 30);
  /// Bytes of one logit from the head to the gradient of the loss.
  double logit_bytes = 14;
  /// Hidden-size tensors alive while one layer is recomputed and run backward,
  /// in bytes for each output element: those on every tensor-parallel rank, and
  /// those that are divided.
  double whole_working_bytes = 120;
  double divided_working_bytes = 24;
  /// Bytes of one attention score that is kept.
  double score_bytes = 5;
};

/// The constants of Tessera's own runtime on a cluster: what a file of measured
/// speeds says replaces what is assumed of described ones.
Constants runtime_constants(const Cluster& cluster, Precision precision);

} // namespace tessera::cost
