#pragma once

// Private to this folder: how the seconds of a measured layer follow from what was measured.

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/described_model.h"

namespace tessera::cost {

/// The forward of one layer on one rank, without the all-reduces of its group.
/// Units: seconds.
struct LayerSeconds {
  /// What a microbatch costs whatever its size, in every pass: the host launches operators.
  double launching = 0;
  /// The same, in a forward and its recomputation alone.
  double dividing = 0;
  /// What every sample costs.
  double work = 0;
};

/// Returns the seconds in which the host of a device launches one operator of this model's layers:
/// as the device's kind says, else as its smallest measured operator took. Returns 0, not known,
/// where neither is there, and where a transformer layer of the model ran in clearly less than its
/// launches would take: the layers were measured by another host.
double
launch_seconds(const DescribedModel& model, const DeviceKind& kind, const Constants& constants);

/// Returns the seconds of layer `index` of a measured model at a tensor-parallel degree, on a
/// device whose host launches an operator in `launch` seconds.
///
/// What was measured at the degree holds the layer's two all-reduces inside a node, which are taken
/// out because they are priced where the group lies. The layer's launches take the seconds that its
/// `fixed_seconds` say, else those of its operators. Without `fixed_seconds`, what a divided layer
/// takes beyond its part of the undivided one's work is launching too, up to as much again; all
/// else is work.
///
/// Throws: ConfigError naming layer, device and degree that were not measured.
/// Source: Li et al. 2022, section 3.4, bottom level.
LayerSeconds layer_seconds(
    const DescribedModel& model,
    std::size_t index,
    const Cluster& cluster,
    const DeviceKind& kind,
    int degree,
    double launch,
    const Constants& constants);

/// Returns the measured forward seconds of one sample. Throws: as layer_seconds.
double measured_seconds(
    const Layer& layer,
    const MeasuredLayer& times,
    const std::string& device,
    int degree);

/// Returns whether the layer is divided in two blocks with an all-reduce each.
bool is_transformer(const Layer& layer);

} // namespace tessera::cost
