#include <map>

#include "tessera/base/error.h"

#include "models/decoder.h"

namespace tessera::models {

namespace {

std::map<std::string, DecoderNames> all_names() {
  std::map<std::string, DecoderNames> all;
  DecoderNames& llama = all["llama"];
  llama.root = "model";
  llama.table = "embed_tokens";
  llama.layers = "layers";
  llama.first_norm = "input_layernorm";
  llama.second_norm = "post_attention_layernorm";
  llama.attention = "self_attn";
  llama.query = "q_proj";
  llama.key = "k_proj";
  llama.value = "v_proj";
  llama.attention_out = "o_proj";
  llama.gate = "gate_proj";
  llama.inner = "up_proj";
  llama.outer = "down_proj";
  llama.last_norm = "norm";
  llama.head = "lm_head";

  DecoderNames& gptj = all["gptj"];
  gptj = llama;
  gptj.root = "transformer";
  gptj.table = "wte";
  gptj.layers = "h";
  gptj.first_norm = "ln_1";
  gptj.second_norm = "";
  gptj.attention = "attn";
  gptj.attention_out = "out_proj";
  gptj.gate = "";
  gptj.inner = "fc_in";
  gptj.outer = "fc_out";
  gptj.last_norm = "ln_f";

  DecoderNames& neo = all["gpt_neo"];
  neo = gptj;
  neo.positions = "wpe";
  neo.second_norm = "ln_2";
  neo.attention = "attn.attention";
  neo.inner = "c_fc";
  neo.outer = "c_proj";

  DecoderNames& neox = all["gpt_neox"];
  neox.root = "gpt_neox";
  neox.table = "embed_in";
  neox.layers = "layers";
  neox.first_norm = "input_layernorm";
  neox.second_norm = "post_attention_layernorm";
  neox.attention = "attention";
  neox.query_key_value = "query_key_value";
  neox.attention_out = "dense";
  neox.inner = "dense_h_to_4h";
  neox.outer = "dense_4h_to_h";
  neox.last_norm = "final_layer_norm";
  neox.head = "embed_out";
  return all;
}

std::string layer_activation(const std::string& name) {
  static const std::map<std::string, std::string> known = {
      {"relu", "relu"},
      {"silu", "silu"},
      {"swish", "silu"},
      {"gelu", "gelu"},
      {"gelu_python", "gelu"},
      {"gelu_new", "gelu_tanh"},
      {"gelu_fast", "gelu_tanh"},
      {"gelu_accurate", "gelu_tanh"},
      {"gelu_pytorch_tanh", "gelu_tanh"}};
  const auto found = known.find(name);
  // A distributed layer refuses the name itself; one process computes them all.
  return found == known.end() ? name : found->second;
}

} // namespace

const DecoderNames& decoder_names(const DecoderOptions& options) {
  static const std::map<std::string, DecoderNames> all = all_names();
  return all.at(options.architecture);
}

nn::TransformerOptions decoder_layer_options(const DecoderOptions& from, std::int64_t layer) {
  const bool llama = from.architecture == "llama";
  const bool gptj = from.architecture == "gptj";
  const bool neo = from.architecture == "gpt_neo";
  const bool neox = from.architecture == "gpt_neox";
  nn::TransformerOptions to;
  to.num_attention_heads = from.num_attention_heads;
  to.attention_head_size = head_width(from);
  to.hidden_size = from.hidden_size;
  to.intermediate_size = inner_width(from);
  to.attention_dropout_prob = from.dropout;
  to.hidden_dropout_prob = llama ? 0 : from.dropout;
  to.activation = layer_activation(from.hidden_act);
  to.layernorm_epsilon = from.norm_epsilon;
  to.initializer_range = from.initializer_range;
  to.use_normal_initialization = true;
  to.causal_mask_size = from.max_position_embeddings;
  to.pre_layernorm = true;
  to.post_layernorm = false;
  to.layer_idx = layer;
  to.flash_attention = from.flash_attention;
  to.rms_layernorm = llama;
  to.gated_output = llama;
  // Queries, keys and values by key head: so NeoX's checkpoints have them.
  to.num_key_value_heads = llama ? key_value_heads(from) : neox ? from.num_attention_heads : 0;
  if (!neo) {
    to.rotary_pct = static_cast<double>(from.rotary_dim > 0 ? from.rotary_dim : head_width(from)) /
                    static_cast<double>(head_width(from));
    to.rotary_base = from.rope_theta;
    to.rotary_interleaved = gptj;
  } else {
    to.scale_attention_scores = false;
    to.attention_window = from.window_size;
    to.attention_window_period = 2;
  }
  to.attention_in_fp32 = gptj || neo;
  to.parallel_attention_output = gptj || (neox && from.use_parallel_residual);
  to.shared_layernorm = gptj;
  to.query_key_value_bias = (llama || neox) && from.attention_bias;
  to.attention_dense_bias = neo || ((llama || neox) && from.attention_bias);
  to.output_bias = !llama || from.mlp_bias;
  return to;
}

} // namespace tessera::models
