#include "tessera/nn/replace/transformer_given.h"

namespace tessera::nn {

TransformerOptions with_given(const GivenOptions& given, TransformerOptions options) {
  given.take("attention_in_fp32", options.attention_in_fp32);
  given.take("query_key_layer_scaling", options.query_key_layer_scaling);
  given.take("flash_attention", options.flash_attention);
  given.take("checkpoint_attentions", options.checkpoint_attentions);
  given.take("fp32_residual_addition", options.fp32_residual_addition);
  for (const char* name :
       {"fused_softmax", "fused_dropout", "fused_bias_gelu", "distribute_embedding", "zero_init"}) {
    given.get(name, false);
  }
  return options;
}

} // namespace tessera::nn
