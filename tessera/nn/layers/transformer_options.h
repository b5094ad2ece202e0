#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/shard.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::nn {

/// The constructor options of all distributed transformer modules, under the
/// names of the paper; each module reads those that concern it. Sizes are those
/// of the whole module.
/// Source: Karakus et al. 2021, appendix I.3.
struct TransformerOptions {
  std::int64_t num_attention_heads = 32;
  /// heads * head size need not be hidden_size.
  std::int64_t attention_head_size = 32;
  std::int64_t hidden_size = 1024;
  std::int64_t intermediate_size = 4096;
  double attention_dropout_prob = 0.1; // of attention weights
  double hidden_dropout_prob = 0.1; // of what is added to the residual
  /// "gelu", "gelu_tanh" (GPT-2's approximation), "relu" or "silu".
  std::string activation = "gelu";
  double layernorm_epsilon = 1e-5;
  double initializer_range = 0.02;
  /// normal(0, initializer_range) and zero biases; false: torch's own.
  bool use_normal_initialization = false;
  /// Longest sequence under a causal mask; none: no causal mask.
  TorchOptional<std::int64_t> causal_mask_size = {};
  /// Norm of what a sub-layer reads (the residual is added un-normed), and of
  /// the sum that it returns. At least one.
  bool pre_layernorm = false;
  bool post_layernorm = true;

  // Attention layer alone.
  bool cross_attention = false;
  // Layers: attention over cross_states between the other two sub-layers.
  bool add_cross_attention = false;

  // Stacks.
  std::int64_t num_layers = 12;

  // Language model.
  std::int64_t vocab_size = 30522;
  std::int64_t num_positions = 1024;
  std::int64_t num_token_types = 0;
  bool add_lm_head = true;

  // Beyond the paper's list, with defaults that change nothing.
  /// Residual sums are f32, whatever the parameters' dtype, from one norm to the next: inside of a
  /// layer, between the layers of a stack and between pipeline ranks, so that a sum that f16 cannot
  /// hold is none too many. A norm reads them and rounds its result to the parameters' dtype. What
  /// a layer or a stack hands to a module that is not its part has the dtype of the hidden states
  /// that it was given.
  bool fp32_residual_addition = false;
  /// false: scores are not divided by sqrt(attention_head_size) (T5).
  bool scale_attention_scores = true;
  /// false: linear layers without bias (T5).
  bool linear_bias = true;
  /// Norm by the root mean square, no mean and no bias (T5).
  bool rms_layernorm = false;
  /// Dropout between the two products of the output layer (T5).
  double intermediate_dropout_prob = 0.0;

  // Which keys a query sees, and where it stands. The paper's list has none of
  // these; the vendor's layers have those whose names are theirs.
  /// Added to the score of query q and key k: slope_h (k - q), for head h of H
  /// slope_h = 2^(-alibi_bias_max (h + 1) / H). The language model then has no
  /// position embedding. Source: Press et al. 2022.
  bool use_alibi = false;
  double alibi_bias_max = 8;
  /// Share of each head's channels that turn with the position (an even number
  /// of them, from the first on); 0: none. The language model then has no
  /// position embedding. Source: Su et al. 2021.
  double rotary_pct = 0;
  double rotary_base = 10000;
  /// Channels 2i and 2i + 1 turn together (GPT-J); false: i and i + half (NeoX).
  bool rotary_interleaved = false;
  /// A query sees itself and the attention_window - 1 keys before it; 0: all
  /// before it. Of every attention_window_period layers the last is so (GPT-Neo
  /// has 2: global, local, global, ...). Needs causal_mask_size.
  std::int64_t attention_window = 0;
  std::int64_t attention_window_period = 1;
  /// This layer's place in its stack, from 0; a stack counts by itself.
  std::int64_t layer_idx = 0;

  // How scores are computed.
  /// Scores are divided by layer_idx + 1 as well.
  bool scale_attn_by_layer_idx = false;
  /// Queries times keys and the softmax in f32, whatever the parameters' dtype.
  bool attention_in_fp32 = false;
  /// The product is divided by layer_idx + 1, against overflow in f16, and
  /// multiplied back in f32 before the softmax. Without effect in bf16.
  bool query_key_layer_scaling = false;
  /// Blockwise softmax with a backward of its own: no S x T matrix is kept.
  bool flash_attention = false;
  /// The attention (scores, softmax, dropout, weighted sum) keeps the results of
  /// query_key_value only and runs again in the backward. Attention in blocks does
  /// that by itself, and is left as it is.
  bool checkpoint_attentions = false;

  // Form of the layer.
  /// Heads of keys and values, each shared by as many query heads; 0: one for
  /// every query head. When given, also when equal to num_attention_heads, the
  /// rows of query_key_value lie by key head: its queries, its key, its value.
  /// Source: Ainslie et al. 2023.
  std::int64_t num_key_value_heads = 0;
  /// false: no bias for queries, keys and values; for the product after the
  /// attention; for the two of the output layer. linear_bias false: none at all.
  bool query_key_value_bias = true;
  bool attention_dense_bias = true;
  bool output_bias = true;
  /// dense2(activation(a) * b), where dense1 gives a and b (its rows: first
  /// those of a). Source: Shazeer 2020.
  bool gated_output = false;
  /// y = x + attention(norm(x)) + output(norm(x)), norms first only; with
  /// shared_layernorm one norm for both (GPT-J), else one each (NeoX).
  bool parallel_attention_output = false;
  bool shared_layernorm = false;
};

/// Query heads in groups that share a key head: what is dealt out to the ranks.
struct HeadGroups {
  std::int64_t groups = 0;
  std::int64_t queries = 1; // of a group

  std::int64_t heads() const {
    return groups * queries;
  }
  /// Query heads of each rank.
  Lengths lengths(int ranks) const;
};
HeadGroups head_groups(const TransformerOptions& options);

/// Channels of a head that turn with the position.
std::int64_t rotary_width(const TransformerOptions& options);

/// The window of this layer; 0: none.
std::int64_t window_of_layer(const TransformerOptions& options);

/// Returns whether positions enter in the attention (rotary, ALiBi) and not through an embedding.
bool positions_in_attention(const TransformerOptions& options);

/// Groups of heads of this rank; on a mesh those of its column.
Range head_groups_here(const TransformerOptions& options, const TensorParallel& parallel);

/// Throws: ConfigError naming the option, ShapeError when ranks would be left
/// without an attention head.
void check_options(
    const char* module,
    const TransformerOptions& options,
    const TensorParallel& parallel);

/// Throws: ShapeError unless `hidden` is [batch, sequence, hidden_size].
void check_hidden(const char* module, const TransformerOptions& options, const at::Tensor& hidden);

/// Hidden states, their mask, states to attend over, their mask; masks are
/// added to attention scores and broadcast to [B, heads, S, T]. Undefined
/// where there is none. Layers return what they got with new hidden states.
using TransformerState = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// Whether a distributed module stands alone or is part of another one, which
/// hands it activations in the inside placement and masks for this rank's
/// heads.
enum class Role { kAlone, kPart };

} // namespace tessera::nn
