#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "tessera/recompute/kept_dropout.h"

/// The attention of a region that keeps products, some heads at a time: its S x T matrices are
/// those of a few heads, in a processor's cache, and none is left for the backward.
namespace tessera::recompute {

/// Heads [head, head + heads) of the samples [sample, sample + samples).
struct HeadBlock {
  std::int64_t sample = 0;
  std::int64_t samples = 0;
  std::int64_t head = 0;
  std::int64_t heads = 0;

  /// The part of a tensor that broadcasts to scores_BHST.
  at::Tensor of(const at::Tensor& t) const;
};

/// What lies between an attention's two products.
struct HeadRule {
  std::int64_t batch = 0;
  std::int64_t heads = 0; // of queries
  /// Adds to the scores_BHST of a block, in place, what has no gradient. Empty: nothing.
  std::function<void(const HeadBlock& block, at::Tensor& scores)> add;
  /// Dropout's mask of all weights; without one nothing is dropped.
  std::optional<MaskSource> mask;
};

/// Returns whether attend_by_heads() can run here: in a region that keeps products, on the
/// processor, without autocast, where `added`, which may be undefined, takes no gradient.
bool attends_by_heads(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& added);

/// dropout(softmax(q k^T + what is added)) v. The result is a kept product; the second run computes
/// nothing, its backward the weights once more. Values and gradients have the bits of libtorch's
/// operators on all heads at once.
/// Shapes: q_NRd, k_NTd, v_NTe -> y_NRe; N: the samples' heads of keys, R: the queries of the heads
/// that share those keys, one head below the other.
/// Throws: as given_product(), kept_bits(). Threads: as run().
/// Source: Korthikanti et al. 2022, section 5; Dao et al. 2022 on what passes through a cache.
at::Tensor
attend_by_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, HeadRule rule);

} // namespace tessera::recompute
