#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/collectives.h"
#include "tessera/nn/parallel/context.h"

// The one product of all distributed layers, y = x W^T + bias with a local part
// of W, together with the collective in front of it and the one behind it. In
// one autograd node, so that the backward sends the gradient of x while it
// computes that of W, and nothing is kept twice.
//
// Letters: R rows (samples x positions) of all ranks, r of this rank; I, O full
// widths, i, o this rank's share.
namespace tessera::nn {

/// Where the operand comes from; in brackets the adjoint in the backward.
enum class Operand {
  kSharded, // x_Ri is this rank's columns already (nothing)
  kReplicated, // x_RI on every rank (all-reduce)
  kOwnSamples, // x_rI: all-gather of rows (reduce-scatter)
  kOwnSamplesToShard, // x_rI: all-to-all to x_Ri (all-to-all)
  kShardedToWhole // x_Ri: all-gather of columns, again in the backward, so that
                  // only x_Ri is kept (reduce-scatter)
};

/// What is done with the product; in brackets the adjoint in the backward.
enum class Result {
  kSharded, // y_Ro are this rank's columns (nothing)
  kReplicated, // partial sums: all-reduce to y_RO (nothing)
  kOwnSamples, // partial sums: reduce-scatter of rows to y_rO (all-gather)
  kShardChannels // partial sums: reduce-scatter of columns to y_Ro (all-gather)
};

struct ProductPlan {
  Operand operand = Operand::kSharded;
  Result result = Result::kSharded;
  /// Rows of every rank's own samples; for the kOwnSamples kinds.
  Lengths rows;
  /// Columns of x for every rank; for kOwnSamplesToShard, kShardedToWhole.
  Lengths in;
  /// Columns of y for every rank; for kShardChannels. The rows of W lie in this
  /// order: those of rank 0's columns first.
  Lengths out;
  /// Where the bias is added: to the partial sums (one rank has it) or to the
  /// result (each rank to what it keeps).
  bool bias_inside = false;
};

/// Shapes: x of two dimensions as `operand` says, weight_Oi or weight_oI, bias
/// undefined or as wide as what it is added to -> y of two dimensions. A bias without elements
/// stands for one that another rank has: nothing is added, and y needs a gradient where it does.
/// Collective over the TP_GROUP, in forward and in backward. Threads: those
/// that run user code.
/// Cost: keeps the operand of the product for the backward, nothing else.
/// Source: Karakus et al. 2021, Figure 6 and appendix F.
at::Tensor distributed_product(
    const TensorParallel& parallel,
    const ProductPlan& plan,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias);

} // namespace tessera::nn
