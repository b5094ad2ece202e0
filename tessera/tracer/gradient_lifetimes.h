#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "tessera/graph/operator_work.h"

namespace tessera::tracer {

/// Follows how long the gradients of a forward's tensors stand in its backward. The gradient of a
/// tensor is made by the backward of the last operator that takes the tensor, and is gone after
/// that of the operator that made it. So, counted in operators of the forward, it stands from the
/// one to the other, as the tensor itself would if it were freed as soon as nobody needs it.
/// Operators are told in the forward's order, by their index in it. Threads: one.
class GradientLifetimes {
 public:
  using Id = std::size_t;

  /// Tells that `by` makes a tensor that has a gradient. Units: bytes.
  Id make(std::size_t by, double bytes);
  /// Tells that an operator takes the tensor.
  void take(Id tensor, std::size_t by);
  /// Tells that the gradients of two tensors are one memory: that of a sum is passed to both terms.
  void unite(Id one, Id other);
  /// Tells that an operator takes a parameter, which the forward has not made. `use`: operators of
  /// one derivative say the same. Where several derivatives give parts of its gradient, the first
  /// of these waits for the others, and each is added to it in new memory; a single one is added
  /// to the sum of the microbatches where that lies, and is nothing here.
  void take_parameter(const void* parameter, double bytes, std::size_t by, std::size_t use);

  /// Writes `gradient_bytes` of every operator.
  void write(graph::ForwardWork& work) const;

 private:
  struct Lifetime {
    std::size_t first = 0;
    std::size_t last = 0;
    double bytes = 0;
    Id part_of = 0; // itself, or one that it is united with
  };
  struct Uses {
    double bytes = 0;
    std::vector<std::size_t> by; // operator of each
    std::size_t last_use = 0;
  };

  Id whole(Id tensor) const;

  std::vector<Lifetime> lifetimes_;
  std::map<const void*, Uses> parameters_;
};

} // namespace tessera::tracer
