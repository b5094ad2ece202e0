#pragma once

#include "tessera/nn/layers/layer_norm.h"
#include "tessera/nn/layers/projection.h"
#include "tessera/nn/layers/transformer_options.h"

namespace tessera::nn {

/// x through "gelu", "gelu_tanh", "relu" or "silu".
at::Tensor activated(const std::string& activation, const at::Tensor& x);

/// The block of two products after the attention, with its residual:
/// y = post(x + drop(dense2(activation(dense1(pre(x)))))). The inner features
/// are divided over the ranks. With gated_output dense1 gives a and b, and
/// dense2 reads activation(a) * b.
///
/// Shapes: hidden_bSI -> y_bSI. Parameters: dense1 [F, I] (gated [2 F, I]), dense2 [I, F],
/// pre_layernorm, layernorm.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Throws: ConfigError for the options; ShapeError for hidden states that do
/// not fit.
/// Source: Karakus et al. 2021, Figures 12, 14, appendix I.3.
class DistributedTransformerOutputLayerImpl : public DistributedModule {
 public:
  explicit DistributedTransformerOutputLayerImpl(const TransformerOptions& options);
  at::Tensor forward(const at::Tensor& hidden);
  /// The forward as a part of a layer; `hidden` may be a sum in f32, and so is the result
  /// (residual_sum).
  at::Tensor forward_part(const at::Tensor& hidden, const Lengths& samples);
  /// Returns what is added to the residual. `normed`: hidden states after the norm.
  at::Tensor update(const at::Tensor& normed, const Lengths& samples);

  // The norm in front, for code that computes the layer step by step.
  const DistributedLayerNorm& pre_layernorm() const {
    return pre_layernorm_;
  }
  const DistributedProjection& dense1() const {
    return dense1_;
  }
  const DistributedProjection& dense2() const {
    return dense2_;
  }

  TransformerOptions options;

 private:
  at::Tensor inner(const at::Tensor& normed, const Lengths& samples);

  DistributedLayerNorm pre_layernorm_{nullptr};
  DistributedProjection dense1_{nullptr};
  DistributedProjection dense2_{nullptr};
  DistributedLayerNorm layernorm_{nullptr};
};
TESSERA_MODULE(DistributedTransformerOutputLayer);

} // namespace tessera::nn
