#pragma once

#include <array>
#include <string>
#include <vector>

namespace tessera::graph {

/// The work of one operator call of a forward on a device. Sizes are doubles because they are also
/// interpolated between two batch sizes.
struct OperatorWork {
  enum class Kind {
    kProduct, // matrices multiplied
    kMove, // elements read and written, next to no arithmetic
    kFunction, // exponentials and the like for every element
    kRandom, // a random number for every element
    kView, // no elements touched
    kCollective // ranks of a group exchange tensors
  };

  std::string name; // "aten::linear"
  int module = 0; // index into ModelGraph::modules, the innermost that runs
  Kind kind = Kind::kMove;
  /// For products: `count` products of (rows x inner) and (inner x columns). For the panels of a
  /// product on a mesh: so many of `bytes` each.
  double count = 0;
  double rows = 0;
  double inner = 0;
  double columns = 0;
  /// For all kinds: elements and bytes of the results.
  double elements = 0;
  double bytes = 0; // for collectives: bytes of one rank's input, or of a panel
  /// Bytes that live until the backward: the results, if an operator reads them there, and what
  /// this one keeps of its own besides.
  double kept_bytes = 0;
  /// While its backward runs: bytes of the gradients of activations that stand, its own among them,
  /// and those of the gradients that a parameter gets from several operators.
  double gradient_bytes = 0;
  /// Of all that is kept, the bytes that no backward after this one's reads.
  double freed_bytes = 0;
  /// The bytes of the buffers that its exchange between ranks, and that of its backward, leave for
  /// those after it. Of each buffer the largest of all operators stays.
  std::array<double, 3> buffer_bytes = {};
  /// For collectives, where `name` is the operation: the ranks of the group.
  int ranks = 0;
  /// Whether the backward runs something for it: its collective for a collective, nothing for a
  /// constant.
  bool has_adjoint = true;
  /// Whether the call of a module returns the result but for sums and dropout, so that whoever
  /// recomputes that call leaves it out (recompute::ReturnedProduct).
  bool returned = false;

  double flops() const {
    return 2 * count * rows * inner * columns;
  }
};

/// The operators of one forward, in order.
using ForwardWork = std::vector<OperatorWork>;

/// Returns the work of a batch of `batch` samples, computed from the work of one and of two
/// samples: every size either is constant or grows with the batch.
/// Throws: PlanError when the two forwards did not run the same operators.
ForwardWork work_of_batch(const ForwardWork& one, const ForwardWork& two, double batch);

} // namespace tessera::graph
