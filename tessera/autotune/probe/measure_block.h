#pragma once

#include <memory>

#include "tessera/autotune/probe/within_layers.h"
#include "tessera/cost/device_speed.h"

namespace tessera::autotune {

/// Seconds of transformer layers in a row, forward and backward: of large ones, most of whose time
/// goes to products, and of small ones, whose operators are hardly more than launched.
/// Threads: the one that made it.
class BlockTimes {
 public:
  /// One round takes `budget_s` for each size, but at least two forwards and backwards.
  explicit BlockTimes(double budget_s);
  ~BlockTimes();

  /// Measures a round. The middle of all passes counts, as of a training step, which meets every
  /// pace that a processor has; what other programs take of it is not processor time of this one.
  void once();

  /// Seconds of one forward and backward of all layers of a size, and of their products alone.
  struct Passes {
    cost::PassSeconds whole;
    cost::PassSeconds products;
  };
  /// Counts passes that took so long among the measured ones.
  void add(const Passes& large, const Passes& small);

  /// Returns the pace of these layers, whose operators have this speed in rows of their own kind.
  LayerPace pace(const cost::DeviceSpeed& speed) const;

 private:
  class Layers;

  double budget_s_;
  std::unique_ptr<Layers> large_;
  std::unique_ptr<Layers> small_;
};

} // namespace tessera::autotune
