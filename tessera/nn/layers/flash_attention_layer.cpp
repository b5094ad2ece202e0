#include "tessera/nn/layers/flash_attention_layer.h"

#include <cmath>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/flash_attention.h"

namespace tessera::nn {

FlashAttentionLayerImpl::FlashAttentionLayerImpl(const FlashAttentionOptions& given)
    : options(given) {
  const double probability = options.attention_dropout_prob;
  if (!(probability >= 0 && probability < 1)) {
    throw ConfigError(tessera::str(
        "FlashAttentionLayer: attention_dropout_prob is ",
        probability,
        "; it should be in [0, 1)"));
  }
  if (options.scale_attn_by_layer_idx && !(options.layer_idx && *options.layer_idx >= 0)) {
    throw ConfigError(
        "FlashAttentionLayer: scale_attn_by_layer_idx needs layer_idx, the layer's place in its "
        "stack, counted from 0");
  }
  if (options.triton_flash_attention && probability > 0) {
    throw ConfigError(tessera::str(
        "FlashAttentionLayer: triton_flash_attention has no dropout, attention_dropout_prob is ",
        probability,
        "; make it 0"));
  }
}

double FlashAttentionLayerImpl::scale_of(std::int64_t width) const {
  if (options.scale) {
    return *options.scale;
  }
  const double by_width =
      options.scale_attention_scores ? 1 / std::sqrt(static_cast<double>(width)) : 1;
  return options.scale_attn_by_layer_idx ? by_width / static_cast<double>(*options.layer_idx + 1)
                                         : by_width;
}

at::Tensor
FlashAttentionLayerImpl::forward(const at::Tensor& qkv, const at::Tensor& attn_mask, bool causal) {
  const bool fits = qkv.dim() == 5 && qkv.size(2) == 3 &&
                    (!options.attention_head_size || *options.attention_head_size == qkv.size(4));
  if (!fits) {
    throw ShapeError(tessera::str(
        "FlashAttentionLayer: qkv has sizes ",
        qkv.sizes(),
        "; expected [batch, sequence, 3, heads, ",
        options.attention_head_size ? tessera::str(*options.attention_head_size)
                                    : tessera::str("head size"),
        "]"));
  }
  if (options.triton_flash_attention && qkv.scalar_type() != at::kHalf &&
      qkv.scalar_type() != at::kBFloat16) {
    throw ShapeError(tessera::str(
        "FlashAttentionLayer: qkv is of type ",
        qkv.scalar_type(),
        "; triton_flash_attention takes f16 and bf16"));
  }
  const std::int64_t heads = qkv.size(3);
  AttentionRule rule;
  rule.scale = scale_of(qkv.size(4));
  rule.causal = causal;
  rule.dropout = is_training() ? options.attention_dropout_prob : 0;
  at::Tensor mask = attn_mask;
  if (mask.defined()) {
    if (mask.dim() > 4) {
      throw ShapeError(tessera::str(
          "FlashAttentionLayer: attn_mask has sizes ",
          mask.sizes(),
          "; expected up to four dimensions that broadcast to [batch, heads, queries, keys]"));
    }
    while (mask.dim() < 4) {
      mask = mask.unsqueeze(0);
    }
  } else if (options.use_alibi) {
    constexpr double kLargest = 8;
    rule.slopes = alibi_slopes(heads, 0, heads, kLargest, qkv.device());
  }
  // Heads in front.
  const auto parts = qkv.permute({2, 0, 3, 1, 4}).unbind(0);
  return blockwise_attention(TensorParallel(), parts[0], parts[1], parts[2], mask, rule);
}

} // namespace tessera::nn
