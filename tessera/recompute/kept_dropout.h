#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace tessera::recompute {

/// How a dropout makes its mask, 0 and one other number, and what it does where a region's second
/// run is given the mask of the first.
struct MaskSource {
  std::function<at::Tensor()> draw;
  /// Leaves behind what drawing would, such as a number of uses. Empty: nothing.
  std::function<void()> skip = {};
  /// Drawing takes from the default generator, whose state afterwards is kept beside the mask.
  bool takes_from_generator = false;
  /// What draw() returns is the mask times this, which spares bits a pass over the mask.
  double divisor = 1;
};

/// The mask that at::dropout multiplies a tensor of these sizes by.
MaskSource torch_mask(at::IntArrayRef sizes, const at::TensorOptions& options, double probability);

/// The mask as bits (dropout_bits.h): drawn and kept in the first run of a region that keeps
/// products, given in the second, where masks_are_kept() or masks_are_given().
/// Throws: UserError when the first run had a mask of another size here, or none.
at::Tensor kept_bits(std::int64_t elements, const MaskSource& source);

/// libtorch's dropout in training, whose mask a region keeps for its second run: a bit for an
/// element. Drawing numbers is the dearest of what selective recomputation would do again on a
/// processor. Without a region that keeps products, on another device, and for a tensor that is not
/// contiguous, it is at::dropout. Results, gradients and the state of the generator have its bits.
/// Throws: as kept_bits(). Threads: as run().
at::Tensor kept_dropout(const at::Tensor& x, double probability);

/// x times a mask of its sizes and type, as above.
at::Tensor kept_dropout(const at::Tensor& x, const MaskSource& source);

} // namespace tessera::recompute
