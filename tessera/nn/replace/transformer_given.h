#pragma once

#include "tessera/nn/layers/transformer_options.h"
#include "tessera/nn/replace/replacement_registry.h"

namespace tessera::nn {

/// `options` with what a tensor_parallelism scope gave of them:
/// attention_in_fp32, query_key_layer_scaling, flash_attention,
/// checkpoint_attentions and fp32_residual_addition.
/// The vendor's names that choose kernels or places of a parameter and change no
/// number are taken and change nothing: fused_softmax, fused_dropout,
/// fused_bias_gelu, distribute_embedding (a whole language model divides its
/// table by vocabulary), zero_init (delayed initialisation is that of the model).
/// For init hooks. Throws: ConfigError when a value is not true or false.
TransformerOptions with_given(const GivenOptions& given, TransformerOptions options);

} // namespace tessera::nn
