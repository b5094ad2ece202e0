#pragma once

#include <vector>

#include "tessera/cost/device_speed.h"

// An operator takes longer within layers than in a row of its own kind, as it is measured: its
// tensors, its weights and its code are in no cache. What follows turns one into the other.
namespace tessera::autotune {

/// How many times as long operators take within layers.
struct LayerPace {
  /// Of what the smallest operator of a kind takes, which is the time of launching it.
  cost::PassSeconds launch;
  /// Of all that larger products take beyond it.
  cost::PassSeconds products;
  /// Of all that other operators take beyond it.
  cost::PassSeconds others;

  static LayerPace of_all(const cost::PassSeconds& pace) {
    return {pace, pace, pace};
  }
};

/// One pass of some layers: what their operators take in rows of their own kind, by the parts of
/// LayerPace, and what the layers took, and of that their products alone. Units: seconds.
struct LayerPass {
  double launch = 0;
  double products = 0;
  double others = 0;
  double whole_took = 0;
  double products_took = 0;
};

/// The same for both passes.
struct LayerPasses {
  LayerPass forward;
  LayerPass backward;
};

/// Returns the pace at which the products of the large layers add up to theirs, and all operators
/// of the large layers and of the small ones to the whole of both. Where there is none, as with
/// layers too much alike, all operators share the pace of the large layers.
LayerPace layer_pace(const LayerPasses& large, const LayerPasses& small);

/// Multiplies all seconds of a speed.
void scale(cost::DeviceSpeed& speed, const LayerPace& pace);

/// Lets no element of an operator on elements take less than one of the largest tensors, which no
/// cache holds: a row of operators finds its smaller tensors in caches, a training step hardly.
void take_from_memory(cost::DeviceSpeed& speed);

} // namespace tessera::autotune
