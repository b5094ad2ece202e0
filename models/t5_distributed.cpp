#include <torch/torch.h>

#include "tessera/nn/layers/transformer_layer.h"

#include "models/distributed_forms.h"
#include "models/state_names.h"
#include "models/t5.h"

namespace tessera::models {

namespace {

nn::TransformerOptions t5_layer_options(const T5Options& from) {
  nn::TransformerOptions to;
  to.num_attention_heads = from.num_heads;
  to.attention_head_size = from.d_kv;
  to.hidden_size = from.d_model;
  to.intermediate_size = from.d_ff;
  to.attention_dropout_prob = from.dropout_rate;
  to.hidden_dropout_prob = from.dropout_rate;
  to.intermediate_dropout_prob = from.dropout_rate;
  to.activation = from.feed_forward_proj == "gated-gelu" ? "gelu_tanh" : activation_of(from);
  to.gated_output = is_gated(from);
  to.layernorm_epsilon = from.layer_norm_epsilon;
  to.pre_layernorm = true;
  to.post_layernorm = false;
  to.scale_attention_scores = false;
  to.linear_bias = false;
  to.rms_layernorm = true;
  return to;
}

/// A norm and the output of an attention, under `original` ("layer.0.") and
/// `distributed` ("attention.").
void add_attention(
    StateTranslation& state,
    const std::string& original,
    const std::string& attention,
    const std::string& distributed) {
  state.tensor(original + "layer_norm.weight", distributed + "pre_layernorm.weight")
      .tensor(original + attention + ".o.weight", distributed + "dense.weight");
}

StateTranslation self_attention() {
  StateTranslation state;
  add_attention(state, "layer.0.", "SelfAttention", "attention.");
  const std::string from = "layer.0.SelfAttention.";
  return state.joined(
      {from + "q.weight", from + "k.weight", from + "v.weight"},
      "attention.query_key_value.weight");
}

StateTranslation cross_attention(const std::string& original, const std::string& distributed) {
  StateTranslation state;
  add_attention(state, original, "EncDecAttention", distributed);
  const std::string from = original + "EncDecAttention.";
  return state.tensor(from + "q.weight", distributed + "query.weight")
      .joined({from + "k.weight", from + "v.weight"}, distributed + "key_value.weight");
}

StateTranslation feed_forward(const T5Options& options) {
  StateTranslation state;
  state.tensor("layer_norm.weight", "pre_layernorm.weight")
      .tensor("DenseReluDense.wo.weight", "dense2.weight");
  const std::string inner = "DenseReluDense.wi";
  return is_gated(options)
             ? state.joined({inner + "_0.weight", inner + "_1.weight"}, "dense1.weight")
             : state.tensor(inner + ".weight", "dense1.weight");
}

StateTranslation encoder_block(const T5Options& options) {
  StateTranslation state = self_attention();
  return state.part("layer.1.", "output.", feed_forward(options));
}

StateTranslation decoder_block(const T5Options& options) {
  StateTranslation state = self_attention();
  return state.part("", "", cross_attention("layer.1.", "cross_attention."))
      .part("layer.2.", "output.", feed_forward(options));
}

/// The hooks of a registration whose names follow from the module's options.
template <typename Impl, typename Registration>
void state_by_options(Registration registration, StateTranslation (*of)(const T5Options&)) {
  registration.state(
      [of](const nn::StateMap& state, const Impl& module) {
        return of(module.options).to_distributed(state);
      },
      [of](const nn::StateMap& state, const Impl& module) {
        return of(module.options).to_original(state);
      });
}

void refuse_first(bool first) {
  if (first) {
    throw ShapeError("it makes the relative position bias of its whole stack");
  }
}

void register_blocks() {
  state_by_options<T5EncoderBlockImpl>(
      tp_register_with_module<T5EncoderBlock, nn::DistributedTransformerLayer>()
          .init([](const T5EncoderBlockImpl& block) {
            refuse_first(block.first);
            return t5_layer_options(block.options);
          })
          .forward([](const at::Tensor& x, const at::Tensor& bias) {
            return std::make_tuple(x, bias, at::Tensor(), at::Tensor());
          })
          .returns([](const nn::TransformerState& state) {
            return std::make_tuple(std::get<0>(state), std::get<1>(state));
          }),
      encoder_block);
  state_by_options<T5DecoderBlockImpl>(
      tp_register_with_module<T5DecoderBlock, nn::DistributedTransformerLayer>().init(
          [](const T5DecoderBlockImpl& block) {
            refuse_first(block.first);
            nn::TransformerOptions options = t5_layer_options(block.options);
            options.add_cross_attention = true;
            return options;
          }),
      decoder_block);
}

/// What is in the first blocks of the stacks.
void register_layers() {
  state_by_options<T5LayerFFImpl>(
      tp_register_with_module<T5LayerFF, nn::DistributedTransformerOutputLayer>().init(
          [](const T5LayerFFImpl& layer) { return t5_layer_options(layer.options); }),
      feed_forward);

  cross_attention("", "").given_to(
      tp_register_with_module<T5LayerCrossAttention, nn::DistributedAttentionLayer>()
          .init([](const T5LayerCrossAttentionImpl& layer) {
            nn::TransformerOptions options = t5_layer_options(layer.options);
            options.cross_attention = true;
            return options;
          })
          .forward([](const at::Tensor& x, const at::Tensor& encoded, const at::Tensor& mask_bias) {
            return std::make_tuple(x, mask_bias, encoded);
          }));
}

} // namespace

bool register_t5_distributed() {
  register_blocks();
  register_layers();
  return true;
}

} // namespace tessera::models
