#pragma once

#include <vector>

#include "tessera/nn/layers/layer_norm.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/nn/layers/projection.h"
#include "tessera/nn/layers/transformer_options.h"

namespace tessera::nn {

/// What an activation's samples and masks look like on all ranks.
struct SampleSizes {
  Lengths samples; // empty where they are not needed
  bool own_masks = false; // the masks differ from sample to sample
  bool own_cross_masks = false;
};

/// Collective over the TP_GROUP unless the batch is prescaled or on a mesh.
/// Cost: one all-gather of 24 bytes.
SampleSizes sample_sizes(
    const TensorParallel& parallel,
    const at::Tensor& hidden,
    const at::Tensor& mask,
    const at::Tensor& cross_mask);

/// A mask as a rank's attention wants it: of all samples, for its own heads.
/// Shapes: up to four dimensions that broadcast to [b, H, S, T], H = `groups.heads()`
/// -> the same with B (on a mesh B/q) and this rank's heads where it had b and H. Undefined
/// stays so.
/// Gradients come back the same way. The gradient of a mask that all samples
/// share covers only this rank's heads; the all-reduce of data parallelism
/// completes it.
at::Tensor mask_for_heads(
    const TensorParallel& parallel,
    const at::Tensor& mask,
    const HeadGroups& groups,
    bool own,
    const Lengths& samples);

/// Attention with its residual: y = post(x + drop(dense(attention(pre(x))))),
/// heads divided over the ranks; with cross_attention keys and values come from
/// cross_states. What else it can do: TransformerOptions.
///
/// Shapes: hidden_bSI, attention_mask (added to the scores; undefined: none)
/// broadcastable to bHST, cross_states_bTI (cross_attention only) -> y_bSI.
/// Parameters: query_key_value [3 H D, I], with num_key_value_heads K
/// [K (H/K + 2) D, I] (or query, key_value), dense [I, H D], pre_layernorm,
/// layernorm.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Throws: ConfigError for the options; ShapeError when a rank would have no
/// head, or for hidden states that do not fit.
/// Source: Karakus et al. 2021, Figures 11, 13, appendix I.3.
class DistributedAttentionLayerImpl : public DistributedModule {
 public:
  explicit DistributedAttentionLayerImpl(const TransformerOptions& options);
  at::Tensor forward(
      const at::Tensor& hidden,
      const at::Tensor& attention_mask,
      const at::Tensor& cross_states);
  at::Tensor forward_self(const at::Tensor& hidden, const at::Tensor& attention_mask = {}) {
    return forward(hidden, attention_mask, {});
  }

  /// The forward as a part of a layer: all activations in the inside placement, the mask for this
  /// rank's heads. `hidden` may be a sum in f32, and so is the result (residual_sum).
  at::Tensor forward_part(
      const at::Tensor& hidden,
      const at::Tensor& mask,
      const at::Tensor& cross_states,
      const Lengths& samples);
  /// Returns what is added to the residual. `normed`: hidden states after the norm.
  at::Tensor update(
      const at::Tensor& normed,
      const at::Tensor& mask,
      const at::Tensor& cross_states,
      const Lengths& samples);

  // The norm in front, for code that computes the layer step by step; empty where there is none.
  const DistributedLayerNorm& pre_layernorm() const {
    return pre_layernorm_;
  }
  const DistributedProjection& query_key_value() const {
    return query_key_value_;
  }
  const DistributedProjection& dense() const {
    return dense_;
  }

  TransformerOptions options;

 private:
  /// Returns the products with the weights of queries, keys and values.
  std::vector<at::Tensor>
  products(const at::Tensor& normed, const at::Tensor& cross_states, const Lengths& samples);
  /// q_BSnd, k_BTmd, v_BTmd of these.
  std::vector<at::Tensor> query_key_values(const std::vector<at::Tensor>& products) const;
  /// The attention between its products, recomputed in the backward where that is asked for.
  at::Tensor attended(
      const TensorParallel& parallel,
      const std::vector<at::Tensor>& products,
      const at::Tensor& mask);

  HeadGroups own_groups_;
  DistributedLayerNorm pre_layernorm_{nullptr};
  DistributedProjection query_key_value_{nullptr};
  DistributedProjection query_{nullptr};
  DistributedProjection key_value_{nullptr};
  DistributedProjection dense_{nullptr};
  DistributedLayerNorm layernorm_{nullptr};
};
TESSERA_MODULE(DistributedAttentionLayer);

/// x + update; with fp32_residual_addition the sum is f32, whatever the two are.
at::Tensor
residual_sum(const TransformerOptions& options, const at::Tensor& x, const at::Tensor& update);

} // namespace tessera::nn
