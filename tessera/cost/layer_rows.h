#pragma once

// Private to this folder: what a LayerTable is made of.

#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/described_model.h"
#include "tessera/cost/strategy.h"

namespace tessera::cost {

/// One layer on one rank at the strategy's degree, for one microbatch.
struct LayerRow {
  /// Per kind of device, without tensor-parallel traffic.
  std::vector<double> forward_seconds;
  std::vector<double> seconds; // forward, backward and recomputation
  PassCollectives exchanged;
  double output_bytes = 0;
  double parameters = 0;
  double whole_parameters = 0;
  double kept_bytes = 0; // by a microbatch between forward and backward
  double working_bytes = 0; // while it runs backward
  double logit_bytes = 0;
};

struct LayerRows {
  std::vector<LayerRow> layers;
  /// What runs behind the last layer on stage 0, per kind of device; empty: nothing.
  std::vector<PassSeconds> tail_seconds;
  PassCollectives tail_exchanged;
};

/// Bytes of a weight or an activation.
inline double value_bytes(Precision precision) {
  return precision == Precision::kHalf ? 2 : 4;
}

/// Seconds of a microbatch: a layer's measured seconds for one sample are taken apart into what the
/// host needs to start its operators (`Constants`), paid once for a microbatch, and work that grows
/// with the samples. A transformer layer's work is that of degree 1 divided by the degree, since
/// its all-reduces are priced where they run; other layers are taken as measured at the degree.
/// Backward costs two forwards, activation checkpointing one more for transformer layers. Throws:
/// ConfigError naming layer, device and degree that were not measured.
LayerRows measured_rows(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants);

/// The model as it was traced at the degree; the collectives of its tensor-parallel groups are
/// priced one by one. Recomputed are all of its movable layers; what stays on stage 0 is not.
/// Throws: ConfigError when it was not traced or priced so.
LayerRows
traced_rows(const DescribedModel& model, const Cluster& cluster, const Strategy& strategy);

} // namespace tessera::cost
