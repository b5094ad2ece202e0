#pragma once

#include <functional>
#include <utility>

#include "tessera/nn/layers/attention_layer.h"
#include "tessera/nn/layers/output_layer.h"
#include "tessera/nn/layers/transformer_options.h"
#include "tessera/nn/module/containers.h"

namespace tessera::nn {

class DistributedTransformerLayerImpl;

/// Computes a layer from its hidden states and its mask, all in the inside
/// placement, in the place of its own modules (nn/managed).
using LayerRunner = std::function<at::Tensor(
    DistributedTransformerLayerImpl& layer,
    const at::Tensor& hidden,
    const at::Tensor& mask)>;

/// Attention, with add_cross_attention attention over cross_states, and the
/// output layer; with parallel_attention_output attention and output layer read
/// the same and are added together.
///
/// Shapes: hidden_bSI, attention_mask, cross_states_bTI, cross_mask -> the same
/// with new hidden states; masks broadcast to bHSS and bHST and are added to
/// the scores. Children: attention, cross_attention, output.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Cost: docs/algorithms.md, "A transformer layer over tensor-parallel ranks".
/// Throws: as its children.
/// Source: Karakus et al. 2021, appendices F, I.3.
class DistributedTransformerLayerImpl : public DistributedModule {
 public:
  explicit DistributedTransformerLayerImpl(
      const TransformerOptions& options,
      Role role = Role::kAlone);
  TransformerState forward(
      const at::Tensor& hidden,
      const at::Tensor& attention_mask,
      const at::Tensor& cross_states,
      const at::Tensor& cross_mask);
  /// The hidden states alone.
  at::Tensor hidden_states(
      const at::Tensor& hidden,
      const at::Tensor& attention_mask = {},
      const at::Tensor& cross_states = {},
      const at::Tensor& cross_mask = {});

  /// Makes `runner` compute this layer, which has no cross attention, except
  /// while one rank traces alone. Before the first call.
  void run_by(LayerRunner runner) {
    runner_ = std::move(runner);
  }

  const DistributedAttentionLayer& attention() const {
    return attention_;
  }
  const DistributedTransformerOutputLayer& output() const {
    return output_;
  }

  TransformerOptions options;

 private:
  at::Tensor forward_part(
      const at::Tensor& hidden,
      const at::Tensor& mask,
      const at::Tensor& cross_states,
      const at::Tensor& cross_mask,
      const Lengths& samples);
  at::Tensor
  forward_together(const at::Tensor& hidden, const at::Tensor& mask, const Lengths& samples);

  Role role_;
  DistributedAttentionLayer attention_{nullptr};
  DistributedAttentionLayer cross_attention_{nullptr};
  DistributedTransformerOutputLayer output_{nullptr};
  LayerRunner runner_;
};
TESSERA_MODULE(DistributedTransformerLayer);

/// num_layers layers, `seq_layers.0` and so on. Activations enter and leave the
/// inside placement once. With both norms every layer norms what it reads and
/// what it returns, so the stack does.
///
/// Shapes, cost, source: as a layer.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
class DistributedTransformerImpl : public DistributedModule {
 public:
  explicit DistributedTransformerImpl(const TransformerOptions& options);
  TransformerState forward(
      const at::Tensor& hidden,
      const at::Tensor& attention_mask,
      const at::Tensor& cross_states,
      const at::Tensor& cross_mask);
  at::Tensor hidden_states(
      const at::Tensor& hidden,
      const at::Tensor& attention_mask = {},
      const at::Tensor& cross_states = {},
      const at::Tensor& cross_mask = {});
  /// The forward as a part of a stack: all activations in the inside placement, masks for this
  /// rank's heads.
  at::Tensor forward_part(
      const at::Tensor& hidden,
      const at::Tensor& mask,
      const at::Tensor& cross_states,
      const at::Tensor& cross_mask);

  TransformerOptions options;

 private:
  Sequential seq_layers_;
};
TESSERA_MODULE(DistributedTransformer);

/// What a stack or a layer standing alone does around its parts.
struct InsideState {
  SampleSizes sizes;
  at::Tensor hidden;
  at::Tensor mask;
  at::Tensor cross_states;
  at::Tensor cross_mask;
};
InsideState enter_state(
    const char* module,
    const TensorParallel& parallel,
    const TransformerOptions& options,
    const at::Tensor& hidden,
    const at::Tensor& attention_mask,
    const at::Tensor& cross_states,
    const at::Tensor& cross_mask);

} // namespace tessera::nn
