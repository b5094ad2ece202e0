#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/layers/transformer_options.h"
#include "tessera/nn/parallel/context.h"

namespace tessera::nn {

/// The computation of an attention between its two products.
struct AttentionRule {
  double scale = 1; // of the scores
  /// Hides keys after the query; the last query stands at the last key.
  bool causal = false;
  std::int64_t window = 0; // with causal: keys that a query sees; 0: all
  double dropout = 0; // of the weights
  /// This rank's heads among all, for dropout; 0 heads in all: every head is here.
  std::int64_t first_head = 0;
  std::int64_t all_heads = 0;
  /// ALiBi's slope of each of this rank's heads, f32; undefined: none.
  at::Tensor slopes;
  /// Scores and softmax in f32.
  bool in_fp32 = false;
  /// The product is made smaller by this, the scores are not.
  double product_divisor = 1;
  /// Blockwise (flash_attention.h).
  bool blockwise = false;
};

/// The rule of a layer's own attention, or with `cross` of that over other
/// states, where no position counts.
AttentionRule rule_of(
    const TransformerOptions& options,
    const TensorParallel& parallel,
    bool cross,
    bool training,
    at::ScalarType dtype,
    const at::Device& device);

/// 2^(-largest (h + 1) / heads) for the heads [first, first + count), f32.
/// Source: Press et al. 2022, section 3.
at::Tensor alibi_slopes(
    std::int64_t heads,
    std::int64_t first,
    std::int64_t count,
    double largest,
    const at::Device& device);

/// Queries [query, query + queries) and keys [key, key + keys) of a sequence
/// whose first query stands at key `offset`.
struct ScoreBlock {
  std::int64_t query = 0;
  std::int64_t queries = 0;
  std::int64_t key = 0;
  std::int64_t keys = 0;
  std::int64_t offset = 0;

  /// The position of the block's first query minus that of its first key.
  std::int64_t diagonal() const {
    return offset + query - key;
  }
};

/// Returns whether a rule hides every key of the block from every query, or none.
bool hides_all(const AttentionRule& rule, const ScoreBlock& block);
bool hides_none(const AttentionRule& rule, const ScoreBlock& block);

/// Adds to scores_BHst of a block what the rule says by place: -inf where it
/// hides, ALiBi's bias. In place.
void add_by_place(const AttentionRule& rule, const ScoreBlock& block, at::Tensor& scores);

} // namespace tessera::nn
