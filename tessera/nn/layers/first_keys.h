#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/layers/attention_rule.h"

namespace tessera::nn {

// First keys: the mask of sequences in which several documents lie one after the other. An
// attention layer takes one wherever it takes a mask that is added to scores, and tells it by its
// form: int64, [b, 1, S, 1]. Query s of sample b sees the keys from first_keys[b, 0, s, 0] on, of
// those that the layer's rule lets it see; with a causal rule these are the tokens of its own
// document before it. It is S numbers a sample, so no S x S matrix travels between layers and
// ranks, and none is made by attention in blocks. Every query sees at least one key.
// Source: Megatron-LM calls such a mask reset_attention_mask.

/// Shapes: document_begins_BS, int64: the place in its sequence where each token's document begins
/// -> first_keys_B1S1. An undefined tensor stays undefined.
/// Not collective. Threads: any. Throws: ShapeError for another form.
at::Tensor first_keys(const at::Tensor& document_begins);

/// Whether a mask, which may be undefined, is one of first keys. Not collective. Threads: any.
bool is_first_keys(const at::Tensor& mask);

/// Adds -inf to scores_BHst of a block where a key comes before its query's first. In place; `mask`
/// holds the first keys of all queries. Not collective. Threads: any.
void hide_before_first_keys(const at::Tensor& mask, const ScoreBlock& block, at::Tensor& scores);

/// No query of the block [query, query + queries) sees a key before this one. 0, which is always
/// true, where the numbers lie on a device that would have to be waited for.
/// Not collective. Threads: any.
std::int64_t lowest_first_key(const at::Tensor& mask, std::int64_t query, std::int64_t queries);

} // namespace tessera::nn
