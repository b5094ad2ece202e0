#include "models/t5_distributed.h"

#include <torch/torch.h>

#include "tessera/nn/layers/transformer_layer.h"

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
  to.activation = "relu";
  to.layernorm_epsilon = from.layer_norm_epsilon;
  to.pre_layernorm = true;
  to.post_layernorm = false;
  to.scale_attention_scores = false;
  to.linear_bias = false;
  to.rms_layernorm = true;
  return to;
}

/// The layers of a block under `original` ("layer.0.") and `distributed`
/// ("attention.").
StateNames attention_names(
    const std::string& original,
    const std::string& attention,
    const std::string& distributed) {
  return {
      {original + "layer_norm.weight", distributed + "pre_layernorm.weight"},
      {original + attention + ".o.weight", distributed + "dense.weight"}};
}

StateNames feed_forward_names(const std::string& original, const std::string& distributed) {
  return {
      {original + "layer_norm.weight", distributed + "pre_layernorm.weight"},
      {original + "DenseReluDense.wi.weight", distributed + "dense1.weight"},
      {original + "DenseReluDense.wo.weight", distributed + "dense2.weight"}};
}

/// Weights of the original that are one in the distributed form.
struct JoinedWeights {
  std::vector<std::string> original;
  std::string distributed;
};

struct LayerState {
  StateNames names;
  std::vector<JoinedWeights> joined;

  void add(const StateNames& more) {
    names.insert(names.end(), more.begin(), more.end());
  }
  void add_self_attention() {
    add(attention_names("layer.0.", "SelfAttention", "attention."));
    joined.push_back(
        {{"layer.0.SelfAttention.q.weight",
          "layer.0.SelfAttention.k.weight",
          "layer.0.SelfAttention.v.weight"},
         "attention.query_key_value.weight"});
  }
  void add_cross_attention(const std::string& original, const std::string& distributed) {
    add(attention_names(original, "EncDecAttention", distributed));
    const std::string from = original + "EncDecAttention.";
    names.push_back({from + "q.weight", distributed + "query.weight"});
    joined.push_back({{from + "k.weight", from + "v.weight"}, distributed + "key_value.weight"});
  }

  nn::StateMap to_distributed(const nn::StateMap& state) const {
    nn::StateMap result = renamed_to_distributed(names, state);
    for (const JoinedWeights& entry : joined) {
      std::vector<at::Tensor> parts;
      for (const std::string& name : entry.original) {
        parts.push_back(state.at(name));
      }
      result[entry.distributed] = at::cat(parts);
    }
    return result;
  }
  nn::StateMap to_original(const nn::StateMap& state) const {
    nn::StateMap result = renamed_to_original(names, state);
    for (const JoinedWeights& entry : joined) {
      const auto count = static_cast<std::int64_t>(entry.original.size());
      const auto parts = state.at(entry.distributed).chunk(count);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        result[entry.original[i]] = parts[i];
      }
    }
    return result;
  }
};

template <typename Registration>
void with_state(Registration registration, const LayerState& state) {
  registration.state(
      [state](const nn::StateMap& whole) { return state.to_distributed(whole); },
      [state](const nn::StateMap& full) { return state.to_original(full); });
}

void refuse_first(bool first) {
  if (first) {
    throw ShapeError("it makes the relative position bias of its whole stack");
  }
}

void register_blocks() {
  LayerState encoder;
  encoder.add_self_attention();
  encoder.add(feed_forward_names("layer.1.", "output."));
  with_state(
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
      encoder);

  LayerState decoder;
  decoder.add_self_attention();
  decoder.add_cross_attention("layer.1.", "cross_attention.");
  decoder.add(feed_forward_names("layer.2.", "output."));
  with_state(
      tp_register_with_module<T5DecoderBlock, nn::DistributedTransformerLayer>().init(
          [](const T5DecoderBlockImpl& block) {
            refuse_first(block.first);
            nn::TransformerOptions options = t5_layer_options(block.options);
            options.add_cross_attention = true;
            return options;
          }),
      decoder);
}

/// What is in the first blocks of the stacks.
void register_layers() {
  LayerState feed_forward;
  feed_forward.add(feed_forward_names("", ""));
  with_state(
      tp_register_with_module<T5LayerFF, nn::DistributedTransformerOutputLayer>().init(
          [](const T5LayerFFImpl& layer) { return t5_layer_options(layer.options); }),
      feed_forward);

  LayerState cross;
  cross.add_cross_attention("", "");
  with_state(
      tp_register_with_module<T5LayerCrossAttention, nn::DistributedAttentionLayer>()
          .init([](const T5LayerCrossAttentionImpl& layer) {
            nn::TransformerOptions options = t5_layer_options(layer.options);
            options.cross_attention = true;
            return options;
          })
          .forward([](const at::Tensor& x, const at::Tensor& encoded, const at::Tensor& mask_bias) {
            return std::make_tuple(x, mask_bias, encoded);
          }),
      cross);
}

} // namespace

bool register_t5_distributed() {
  register_blocks();
  register_layers();
  return true;
}

} // namespace tessera::models
