#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/context.h"
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
  /// "gelu", "gelu_tanh" (GPT-2's approximation) or "relu".
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
  /// The residual sum in f32, whatever the parameters' dtype.
  bool fp32_residual_addition = false;
  /// false: scores are not divided by sqrt(attention_head_size) (T5).
  bool scale_attention_scores = true;
  /// false: linear layers without bias (T5).
  bool linear_bias = true;
  /// Norm by the root mean square, no mean and no bias (T5).
  bool rms_layernorm = false;
  /// Dropout between the two products of the output layer (T5).
  double intermediate_dropout_prob = 0.0;
};

/// Attention heads of this rank; on a mesh those of its column.
std::int64_t heads_here(const TransformerOptions& options, const TensorParallel& parallel);

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
