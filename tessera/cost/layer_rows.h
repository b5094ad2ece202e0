#pragma once

// Private to this folder: the rows from which a LayerTable is built.

#include <array>
#include <cstddef>
#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/described_model.h"
#include "tessera/cost/strategy.h"

namespace tessera::cost {

/// One layer on one rank at the strategy's degree, for one microbatch.
struct LayerRow {
  /// For each kind of device, without tensor-parallel traffic.
  std::vector<double> forward_seconds;
  std::vector<double> seconds; // forward, backward and recomputation
  /// The part of them that a backward computes when it has answered the rank that waits for it, for
  /// each kind of device; empty: none.
  std::vector<double> deferred_seconds = {};
  PassCollectives exchanged;
  double output_bytes = 0;
  double parameters = 0;
  double whole_parameters = 0;
  double kept_bytes = 0; // of a microbatch, between its forward and its backward
  bool recomputed = false; // by activation checkpointing
  double working_bytes = 0; // while the layer runs its backward
  /// As TracedLayer::deferring and deferred_bytes_per_sample; other models leave them at 0.
  double deferring_bytes = 0;
  double deferred_bytes = 0;
  std::array<double, 3> buffer_bytes = {}; // as TracedLayer::buffers
  double logit_bytes = 0;
  /// Gathered activations of a microbatch, which are held until the device has used them.
  double gathered_bytes = 0;
  /// For each kind of device the time in which its host starts the layer's operators, beside which
  /// the device works; empty: `seconds` hold it.
  std::vector<double> host_seconds = {};
  double collectives = 0; // that the host starts in a microbatch, forward and backward
  double tensors = 0; // parameters that an optimizer whose state is divided exchanges one by one
};

/// The rows of all layers.
struct LayerRows {
  std::vector<LayerRow> layers;
  /// The part of layer 0 that runs behind the last layer, for each kind of device; empty: none.
  std::vector<PassSeconds> tail_seconds;
  std::vector<double> tail_deferred_seconds = {}; // as LayerRow::deferred_seconds
  PassCollectives tail_exchanged;
  double tail_working_bytes = 0;
  double held_gradient_bytes = 0; // TracedPart::held_gradient_bytes
  /// By how much a microbatch whose backward is between the tail and layer 0 needs more than
  /// before.
  double between_bytes = 0;
};

/// Returns the rows that `row_of` makes for each of so many layers.
template <typename RowOf>
LayerRows rows_of_layers(std::size_t layers, const RowOf& row_of) {
  LayerRows rows;
  for (std::size_t i = 0; i < layers; ++i) {
    rows.layers.push_back(row_of(i));
  }
  return rows;
}

/// Returns the bytes of one weight or activation.
inline double value_bytes(Precision precision) {
  return precision == Precision::kHalf ? 2 : 4;
}

/// Returns the rows of a measured model, whose seconds `layer_seconds` divides into what a
/// microbatch pays once and what grows with its samples. A transformer layer's all-reduces are
/// priced where its group lies; layers of other kinds are priced as measured at the degree. A
/// backward takes two forwards; activation checkpointing adds one more for transformer layers.
/// Throws: ConfigError naming layer, device and degree that were not measured, and for selective
/// recomputation.
LayerRows measured_rows(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants);

/// Returns the rows of a model of which only sizes are known: every operator takes as long as its
/// operations or its bytes need on the device (roofline). Tensor parallelism divides sequences too
/// (Distribution::kAsMeasured), leaves activations whole outside of its blocks (kSpeed) or is that
/// of a mesh (kMesh). A model's logits and their loss are priced at the layer of kind "loss", if
/// there is one, else at "lm_head". Throws: ConfigError naming a device whose speed is not known,
/// and for the kind "memory". Source: Williams et al. 2009 (roofline); Korthikanti et al. 2022,
/// sections 4.1 and 4.2.2 (operators, activations, what sequences divide).
LayerRows sized_rows(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants);

/// Returns the rows of a traced model at the strategy's degree and microbatch size. Activation
/// checkpointing recomputes all layers but the first, which stays on stage 0.
/// Throws: ConfigError when the model was not traced in this way, or not priced at this size.
LayerRows
traced_rows(const DescribedModel& model, const Cluster& cluster, const Strategy& strategy);

} // namespace tessera::cost
