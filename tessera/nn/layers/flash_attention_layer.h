#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/module/module.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::nn {

/// Under the vendor's names.
struct FlashAttentionOptions {
  double attention_dropout_prob = 0.1;
  /// None: that of the input.
  TorchOptional<std::int64_t> attention_head_size = {};
  /// Scores are divided by sqrt(attention_head_size), and by layer_idx + 1.
  bool scale_attention_scores = true;
  bool scale_attn_by_layer_idx = false;
  TorchOptional<std::int64_t> layer_idx = {};
  /// The factor of the scores, whatever the other options say.
  TorchOptional<double> scale = {};
  /// Holds the caller to what the vendor's second kernel takes: no dropout, f16
  /// or bf16. The computation is the same one.
  bool triton_flash_attention = false;
  /// ALiBi's bias with the slopes 2^(-8 (h + 1) / H), unless a mask is given,
  /// which then contains it.
  bool use_alibi = false;
};

/// Attention that keeps no S x S matrix, for one's own layers; the transformer's
/// have it with flash_attention. Queries, keys and values have the same heads,
/// all of which are here: it knows of no other rank.
///
/// Shapes: qkv_BS3HD, attn_mask (added to the scores; undefined: none)
/// broadcastable to BHSS -> y_BHSD.
/// Not collective. Threads: as torch::nn::Module.
/// Cost: flash_attention.h. Any head size will do.
/// Throws: ConfigError for options, ShapeError for a qkv that does not fit.
class FlashAttentionLayerImpl : public torch::nn::Module {
 public:
  explicit FlashAttentionLayerImpl(const FlashAttentionOptions& options);
  at::Tensor forward(const at::Tensor& qkv, const at::Tensor& attn_mask, bool causal);

  FlashAttentionOptions options;

 private:
  double scale_of(std::int64_t width) const;
};
TESSERA_MODULE(FlashAttentionLayer);

} // namespace tessera::nn
