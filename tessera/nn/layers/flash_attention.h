#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/layers/attention_rule.h"
#include "tessera/nn/parallel/context.h"

namespace tessera::nn {

/// softmax(scale q k^T + mask) v, computed in blocks of queries and keys: the
/// softmax of a row grows block by block, the backward computes every block
/// again from the logarithm of the row's sum. Blocks that the rule hides are
/// left out, and on the processor those before the first keys. The value is that of the ordinary
/// attention; its dropout draws another mask.
///
/// Shapes: q_BnSd, k_BmTd, v_BmTd (any strides; m divides n), mask broadcastable
/// to BnST with four dimensions, or first keys (first_keys.h), or undefined -> y_BnSd.
/// Not collective. Threads: those that run user code.
/// Cost: keeps q, k, v, y and one f32 number a row; 256 x 256 scores a head while
/// it runs. 5/3 of the ordinary products. Sums in f32.
/// Source: Dao et al. 2022, algorithms 1 and 4; Rabe and Staats 2021.
at::Tensor blockwise_attention(
    const TensorParallel& parallel,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& mask,
    const AttentionRule& rule);

} // namespace tessera::nn
