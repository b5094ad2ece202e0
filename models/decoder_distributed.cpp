#include <tuple>

#include <torch/torch.h>

#include "tessera/nn/layers/transformer_layer.h"
#include "tessera/nn/replace/replacement_registry.h"
#include "tessera/nn/replace/transformer_given.h"

#include "models/decoder.h"
#include "models/distributed_forms.h"
#include "models/state_names.h"

namespace tessera::models {

namespace {

/// Adds a layer's queries, keys and values, in whichever form it has them.
void add_queries(
    StateTranslation& state,
    const DecoderNames& names,
    const nn::TransformerOptions& layer) {
  const std::string from = names.attention + ".";
  const std::string to = "attention.query_key_value";
  if (!names.query_key_value.empty()) {
    state.linear(from + names.query_key_value, to);
    return;
  }
  const nn::HeadGroups groups = nn::head_groups(layer);
  const std::int64_t width = layer.attention_head_size;
  for (const std::string kind : {".weight", ".bias"}) {
    if (kind == ".bias" && !layer.query_key_value_bias) {
      continue;
    }
    const std::vector<std::string> originals{
        from + names.query + kind, from + names.key + kind, from + names.value + kind};
    if (layer.num_key_value_heads > 0) {
      state.dealt(originals, {groups.queries * width, width, width}, to + kind);
    } else {
      state.joined(originals, to + kind);
    }
  }
}

StateTranslation block_translation(const DecoderBlockImpl& block) {
  const DecoderNames& names = decoder_names(block.options);
  const nn::TransformerOptions layer = decoder_layer_options(block.options, block.layer);
  StateTranslation state;
  state.linear(names.first_norm, "attention.pre_layernorm")
      .linear(names.attention + "." + names.attention_out, "attention.dense")
      .linear("mlp." + names.outer, "output.dense2");
  add_queries(state, names, layer);
  if (!names.second_norm.empty()) {
    state.linear(names.second_norm, "output.pre_layernorm");
  }
  if (names.gate.empty()) {
    return state.linear("mlp." + names.inner, "output.dense1");
  }
  state.joined(
      {"mlp." + names.gate + ".weight", "mlp." + names.inner + ".weight"}, "output.dense1.weight");
  if (layer.output_bias) {
    state.joined(
        {"mlp." + names.gate + ".bias", "mlp." + names.inner + ".bias"}, "output.dense1.bias");
  }
  return state;
}

} // namespace

bool register_decoder_distributed() {
  tp_register_with_module<DecoderBlock, nn::DistributedTransformerLayer>()
      .init([](const DecoderBlockImpl& block, const nn::GivenOptions& given) {
        return nn::with_given(given, decoder_layer_options(block.options, block.layer));
      })
      .forward([](const at::Tensor& x, const at::Tensor& first_keys) {
        return std::make_tuple(x, first_keys, at::Tensor(), at::Tensor());
      })
      .returns([](const nn::TransformerState& state) {
        return DecoderBlockImpl::State(std::get<0>(state), std::get<1>(state));
      })
      .state(
          [](const nn::StateMap& state, const DecoderBlockImpl& block) {
            return block_translation(block).to_distributed(state);
          },
          [](const nn::StateMap& state, const DecoderBlockImpl& block) {
            return block_translation(block).to_original(state);
          });
  return true;
}

} // namespace tessera::models
