#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/layers/attention_rule.h"
#include "tessera/nn/parallel/context.h"

namespace tessera::nn {

/// softmax(scale q k^T + mask) v over this rank's heads; heads joined again.
/// Query heads that share a key head follow one another.
/// Shapes: q_BSnd, k_BTmd, v_BTmd (any strides; m divides n), mask broadcastable to BnST, or first
/// keys (first_keys.h), or undefined -> y_BS(nd).
/// Not collective. Threads: those that run user code.
/// Cost: 4 B n S T d flops; keeps B n S T weights for the backward, blockwise
/// none of them. Callers make it a region of its own where `checkpoint_attentions`
/// says so (recompute/attentions.h).
at::Tensor attend_over_heads(
    const TensorParallel& parallel,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& mask,
    const AttentionRule& rule);

} // namespace tessera::nn
