#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/cost/device_speed.h"

namespace tessera::autotune {

/// Seconds of transformer layers in a row, forward and backward, as a whole. They are longer than
/// the sum of their operators, which find their code and their tensors in caches more often where
/// one kind is measured at a time. Threads: the one that made it.
class BlockTimes {
 public:
  /// One round takes `budget_s`, but at least one forward and backward.
  explicit BlockTimes(double budget_s);

  /// Measures a round. The middle of all passes counts, as of a training step, which meets every
  /// pace that a processor has; what other programs take of it is not processor time of this one.
  void once();

  /// Counts passes that took so long among the measured ones.
  void add(const cost::PassSeconds& passes);

  /// Returns how many times as long each pass takes as the sum of its operators at this speed.
  cost::PassSeconds longer_than(const cost::DeviceSpeed& speed) const;

 private:
  struct Blocks;

  double budget_s_;
  std::shared_ptr<Blocks> blocks_;
  at::Tensor input_;
  std::vector<double> forwards_;
  std::vector<double> backwards_;
};

} // namespace tessera::autotune
