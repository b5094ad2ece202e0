// Llama, GPT-J, GPT-Neo and GPT-NeoX: names of their checkpoints, and their
// formulas written with torch on those names.
#include "models/decoder.h"

#include <cmath>
#include <map>
#include <set>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "models/load.h"
#include "models/presets.h"
#include "models/published_config.h"
#include "models/registry.h"

namespace tessera::models {
namespace {

using State = std::map<std::string, torch::Tensor>;

DecoderOptions tiny(const std::string& preset) {
  DecoderOptions o = std::get<DecoderOptions>(find_preset(preset).options);
  o.vocab_size = 31;
  o.hidden_size = 16;
  o.intermediate_size = 24;
  o.num_hidden_layers = 2;
  o.max_position_embeddings = 12;
  o.rotary_dim = o.rotary_dim > 0 ? 2 : 0;
  o.window_size = o.architecture == "gpt_neo" ? 3 : o.window_size;
  o.initializer_range = 0.4;
  return o;
}

State state_of(torch::nn::Module& module) {
  State state;
  for (const auto& item : module.named_parameters()) {
    state[item.key()] = item.value();
  }
  return state;
}

/// Norms and biases that are not their first values, which would hide them.
void shake(torch::nn::Module& module) {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    item.value().add_(torch::randn_like(item.value()) * 0.1);
  }
}

std::set<std::string> names_of(const State& state, const std::string& layer) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : state) {
    if (name.find(layer) != std::string::npos) {
      names.insert(name.substr(name.find(layer) + layer.size()));
    } else if (name.find(".1.") == std::string::npos) {
      names.insert(name);
    }
  }
  return names;
}

TEST(Decoder, HasTheNamesOfItsCheckpoints) {
  using Names = std::set<std::string>;
  EXPECT_EQ(
      names_of(state_of(*Decoder(tiny("llama-tiny"))), "model.layers.0."),
      (Names{
          "model.embed_tokens.weight",
          "model.norm.weight",
          "lm_head.weight",
          "input_layernorm.weight",
          "post_attention_layernorm.weight",
          "self_attn.q_proj.weight",
          "self_attn.k_proj.weight",
          "self_attn.v_proj.weight",
          "self_attn.o_proj.weight",
          "mlp.gate_proj.weight",
          "mlp.up_proj.weight",
          "mlp.down_proj.weight"}));
  EXPECT_EQ(
      names_of(state_of(*Decoder(tiny("gptj-tiny"))), "transformer.h.0."),
      (Names{
          "transformer.wte.weight",
          "transformer.ln_f.weight",
          "transformer.ln_f.bias",
          "lm_head.weight",
          "lm_head.bias",
          "ln_1.weight",
          "ln_1.bias",
          "attn.q_proj.weight",
          "attn.k_proj.weight",
          "attn.v_proj.weight",
          "attn.out_proj.weight",
          "mlp.fc_in.weight",
          "mlp.fc_in.bias",
          "mlp.fc_out.weight",
          "mlp.fc_out.bias"}));
  EXPECT_EQ(
      names_of(state_of(*Decoder(tiny("gpt-neo-tiny"))), "transformer.h.0."),
      (Names{
          "transformer.wte.weight",
          "transformer.wpe.weight",
          "transformer.ln_f.weight",
          "transformer.ln_f.bias",
          "lm_head.weight",
          "ln_1.weight",
          "ln_1.bias",
          "ln_2.weight",
          "ln_2.bias",
          "attn.attention.q_proj.weight",
          "attn.attention.k_proj.weight",
          "attn.attention.v_proj.weight",
          "attn.attention.out_proj.weight",
          "attn.attention.out_proj.bias",
          "mlp.c_fc.weight",
          "mlp.c_fc.bias",
          "mlp.c_proj.weight",
          "mlp.c_proj.bias"}));
  EXPECT_EQ(
      names_of(state_of(*Decoder(tiny("gpt-neox-tiny"))), "gpt_neox.layers.0."),
      (Names{
          "gpt_neox.embed_in.weight",
          "gpt_neox.final_layer_norm.weight",
          "gpt_neox.final_layer_norm.bias",
          "embed_out.weight",
          "input_layernorm.weight",
          "input_layernorm.bias",
          "post_attention_layernorm.weight",
          "post_attention_layernorm.bias",
          "attention.query_key_value.weight",
          "attention.query_key_value.bias",
          "attention.dense.weight",
          "attention.dense.bias",
          "mlp.dense_h_to_4h.weight",
          "mlp.dense_h_to_4h.bias",
          "mlp.dense_4h_to_h.weight",
          "mlp.dense_4h_to_h.bias"}));
}

/// The formulas as the papers and the published models have them.
struct Plain {
  const State& state;
  std::int64_t heads;

  torch::Tensor linear(const std::string& name, const torch::Tensor& x) const {
    const auto y = torch::matmul(x, state.at(name + ".weight").t());
    const auto bias = state.find(name + ".bias");
    return bias == state.end() ? y : y + bias->second;
  }
  torch::Tensor norm(const std::string& name, const torch::Tensor& x, double epsilon) const {
    const auto centred = x - x.mean(-1, true);
    return centred / torch::sqrt(centred.square().mean(-1, true) + epsilon) *
               state.at(name + ".weight") +
           state.at(name + ".bias");
  }
  torch::Tensor rms(const std::string& name, const torch::Tensor& x, double epsilon) const {
    return x / torch::sqrt(x.square().mean(-1, true) + epsilon) * state.at(name + ".weight");
  }
  /// [B, S, I] -> [B, H, S, D]
  torch::Tensor split(const torch::Tensor& x, std::int64_t into) const {
    return x.view({x.size(0), x.size(1), into, -1}).transpose(1, 2);
  }
  /// x cos + rotate(x) sin, as transformers writes it.
  torch::Tensor turned(const torch::Tensor& x, std::int64_t width, double base, bool interleaved)
      const {
    const auto exponent = torch::arange(0, width, 2).to(torch::kDouble) / width;
    const auto angles =
        torch::outer(torch::arange(x.size(2)).to(torch::kDouble), torch::pow(base, -exponent));
    const auto both =
        (interleaved ? torch::repeat_interleave(angles, 2, 1) : torch::cat({angles, angles}, 1))
            .to(torch::kFloat);
    const auto part = x.slice(-1, 0, width);
    const auto rotated =
        interleaved ? torch::stack({-part.slice(-1, 1, width, 2), part.slice(-1, 0, width, 2)}, -1)
                          .flatten(-2)
                    : torch::cat({-part.slice(-1, width / 2), part.slice(-1, 0, width / 2)}, -1);
    return torch::cat({part * both.cos() + rotated * both.sin(), x.slice(-1, width)}, -1);
  }
  torch::Tensor attention(
      const torch::Tensor& q,
      const torch::Tensor& k,
      const torch::Tensor& v,
      double scale,
      std::int64_t window = 0) const {
    const auto ones = torch::ones({q.size(2), q.size(2)}, torch::kBool);
    auto seen = ones.tril();
    if (window > 0) {
      seen = torch::logical_xor(seen, ones.tril(-window));
    }
    const auto scores =
        (torch::matmul(q, k.transpose(2, 3)) * scale).masked_fill(seen.logical_not(), -INFINITY);
    return torch::matmul(torch::softmax(scores, -1), v).transpose(1, 2).flatten(2);
  }
};

torch::Tensor llama(const DecoderOptions& o, const State& state, const torch::Tensor& ids) {
  const Plain p{state, o.num_attention_heads};
  const double epsilon = o.norm_epsilon;
  const auto width = head_width(o);
  const auto shared = o.num_attention_heads / key_value_heads(o);
  auto x = state.at("model.embed_tokens.weight")
               .index_select(0, ids.flatten())
               .view({ids.size(0), ids.size(1), -1});
  for (int i = 0; i < o.num_hidden_layers; ++i) {
    const auto layer = "model.layers." + std::to_string(i) + ".";
    const auto normed = p.rms(layer + "input_layernorm", x, epsilon);
    const auto q = p.split(p.linear(layer + "self_attn.q_proj", normed), p.heads);
    const auto k = p.split(p.linear(layer + "self_attn.k_proj", normed), key_value_heads(o));
    const auto v = p.split(p.linear(layer + "self_attn.v_proj", normed), key_value_heads(o));
    const auto attended = p.attention(
        p.turned(q, width, o.rope_theta, false),
        p.turned(k, width, o.rope_theta, false).repeat_interleave(shared, 1),
        v.repeat_interleave(shared, 1),
        1 / std::sqrt(static_cast<double>(width)));
    x = x + p.linear(layer + "self_attn.o_proj", attended);
    const auto again = p.rms(layer + "post_attention_layernorm", x, epsilon);
    const auto gate = p.linear(layer + "mlp.gate_proj", again);
    x = x + p.linear(
                layer + "mlp.down_proj",
                gate * torch::sigmoid(gate) * p.linear(layer + "mlp.up_proj", again));
  }
  return p.linear("lm_head", p.rms("model.norm", x, epsilon));
}

torch::Tensor gptj(const DecoderOptions& o, const State& state, const torch::Tensor& ids) {
  const Plain p{state, o.num_attention_heads};
  auto x = torch::embedding(state.at("transformer.wte.weight"), ids);
  for (int i = 0; i < o.num_hidden_layers; ++i) {
    const auto layer = "transformer.h." + std::to_string(i) + ".";
    const auto normed = p.norm(layer + "ln_1", x, o.norm_epsilon);
    const auto part = [&](const char* name) {
      return p.split(p.linear(layer + "attn." + name, normed), p.heads);
    };
    const auto attended = p.attention(
        p.turned(part("q_proj"), o.rotary_dim, 10000, true),
        p.turned(part("k_proj"), o.rotary_dim, 10000, true),
        part("v_proj"),
        1 / std::sqrt(static_cast<double>(head_width(o))));
    x = x + p.linear(layer + "attn.out_proj", attended) +
        p.linear(layer + "mlp.fc_out", torch::gelu(p.linear(layer + "mlp.fc_in", normed), "tanh"));
  }
  return p.linear("lm_head", p.norm("transformer.ln_f", x, o.norm_epsilon));
}

torch::Tensor gpt_neo(const DecoderOptions& o, const State& state, const torch::Tensor& ids) {
  const Plain p{state, o.num_attention_heads};
  auto x = torch::embedding(state.at("transformer.wte.weight"), ids) +
           state.at("transformer.wpe.weight").narrow(0, 0, ids.size(1));
  for (int i = 0; i < o.num_hidden_layers; ++i) {
    const auto layer = "transformer.h." + std::to_string(i) + ".";
    const auto normed = p.norm(layer + "ln_1", x, o.norm_epsilon);
    const auto part = [&](const char* name) {
      return p.split(p.linear(layer + "attn.attention." + name, normed), p.heads);
    };
    const auto attended = p.attention(
        part("q_proj"), part("k_proj"), part("v_proj"), 1, i % 2 == 1 ? o.window_size : 0);
    x = x + p.linear(layer + "attn.attention.out_proj", attended);
    const auto again = p.norm(layer + "ln_2", x, o.norm_epsilon);
    x = x +
        p.linear(layer + "mlp.c_proj", torch::gelu(p.linear(layer + "mlp.c_fc", again), "tanh"));
  }
  return p.linear("lm_head", p.norm("transformer.ln_f", x, o.norm_epsilon));
}

torch::Tensor gpt_neox(const DecoderOptions& o, const State& state, const torch::Tensor& ids) {
  const Plain p{state, o.num_attention_heads};
  auto x = torch::embedding(state.at("gpt_neox.embed_in.weight"), ids);
  for (int i = 0; i < o.num_hidden_layers; ++i) {
    const auto layer = "gpt_neox.layers." + std::to_string(i) + ".";
    const auto qkv = p.split(
                          p.linear(
                              layer + "attention.query_key_value",
                              p.norm(layer + "input_layernorm", x, o.norm_epsilon)),
                          p.heads)
                         .chunk(3, -1);
    const auto attended = p.linear(
        layer + "attention.dense",
        p.attention(
            p.turned(qkv[0], o.rotary_dim, o.rope_theta, false),
            p.turned(qkv[1], o.rotary_dim, o.rope_theta, false),
            qkv[2],
            1 / std::sqrt(static_cast<double>(head_width(o)))));
    const auto read = o.use_parallel_residual ? x : x + attended;
    const auto inner = torch::gelu(p.linear(
        layer + "mlp.dense_h_to_4h",
        p.norm(layer + "post_attention_layernorm", read, o.norm_epsilon)));
    x = x + attended + p.linear(layer + "mlp.dense_4h_to_h", inner);
  }
  return p.linear("embed_out", p.norm("gpt_neox.final_layer_norm", x, o.norm_epsilon));
}

void expect_formula(
    const DecoderOptions& options,
    torch::Tensor (*formula)(const DecoderOptions&, const State&, const torch::Tensor&)) {
  torch::manual_seed(1);
  Decoder model(options);
  shake(*model);
  const State state = state_of(*model);
  const auto ids = torch::arange(20).mul(7).remainder(options.vocab_size).view({2, 10});
  const auto expected = formula(options, state, ids);
  const auto found = model(ids);
  EXPECT_LT(
      (found - expected).abs().max().item<double>(), 2e-4 * expected.abs().max().item<double>());
  DecoderOptions blockwise = options;
  blockwise.flash_attention = true;
  Decoder second(blockwise);
  load_parameters(*second, state, "state");
  EXPECT_LT(
      (second(ids) - expected).abs().max().item<double>(),
      2e-4 * expected.abs().max().item<double>());
  const auto loss = model(ids, ids);
  EXPECT_LT((loss - cross_entropy(expected, ids)).abs().item<double>(), 1e-4 * loss.item<double>());
}

TEST(Decoder, LlamaIsItsFormula) {
  auto options = tiny("llama-tiny");
  expect_formula(options, llama);
  options.head_dim = 6;
  options.num_key_value_heads = 4;
  options.attention_bias = true;
  options.mlp_bias = true;
  options.rope_theta = 500;
  expect_formula(options, llama);
}

TEST(Decoder, GptJIsItsFormula) {
  auto options = tiny("gptj-tiny");
  options.rotary_dim = 4;
  options.num_attention_heads = 2;
  expect_formula(options, gptj);
}

TEST(Decoder, GptNeoIsItsFormula) {
  expect_formula(tiny("gpt-neo-tiny"), gpt_neo);
}

TEST(Decoder, GptNeoXIsItsFormula) {
  auto options = tiny("gpt-neox-tiny");
  expect_formula(options, gpt_neox);
  options.use_parallel_residual = false;
  expect_formula(options, gpt_neox);
}

TEST(Decoder, CountsItsParameters) {
  for (const char* name : {"llama-tiny", "gptj-tiny", "gpt-neo-tiny", "gpt-neox-tiny"}) {
    auto options = tiny(name);
    if (options.architecture == "llama") {
      options.attention_bias = true;
      options.mlp_bias = true;
    }
    Decoder model(options);
    std::int64_t elements = 0;
    std::set<const void*> seen;
    for (const auto& parameter : model->parameters()) {
      elements += seen.insert(parameter.unsafeGetTensorImpl()).second ? parameter.numel() : 0;
    }
    EXPECT_EQ(count_parameters(options), elements) << name;
  }
}

TEST(Decoder, ConstantsOfOldCheckpointsAreLeftOut) {
  Decoder model(tiny("llama-tiny"));
  State state;
  for (const auto& [name, tensor] : state_of(*model)) {
    state[name] = tensor.detach().clone();
  }
  state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch::ones({2});
  load_parameters(*model, state, "file");
  state["model.layers.0.self_attn.q_proj.bias"] = torch::ones({16});
  EXPECT_THROW(load_parameters(*model, state, "file"), CheckpointError);
}

TEST(Decoder, ListsOfLayersThatFillTheMemoryAreRefused) {
  for (const char* types :
       {R"([[["global", "local"], 2000000000]])", R"([[[], 2000000000]])", R"([["global"]])"}) {
    const std::string file = str(R"({"model_type": "gpt_neo", "attention_types": )", types, "}");
    EXPECT_THROW(decoder_from_published(file, "file"), ConfigError) << types;
  }
}

TEST(Decoder, RefusesOptionsOfOthersAndSizesThatDoNotFit) {
  const auto message = [](const std::string& preset, const std::string& json) -> std::string {
    try {
      resolve_preset(preset, json);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  const auto expect = [&](const char* preset, const char* json, const char* part) {
    EXPECT_NE(message(preset, json).find(part), std::string::npos) << message(preset, json);
  };
  expect("gptj-tiny", R"({"num_key_value_heads": 2})", "not of gptj");
  expect("llama-tiny", R"({"window_size": 3})", "option of gpt_neo");
  expect("llama-tiny", R"({"num_key_value_heads": 3})", "num_key_value_heads = 3");
  expect("gptj-tiny", R"({"rotary_dim": 3})", "even number");
  expect("gpt-neox-tiny", R"({"rotary_dim": 64})", "at most");
  expect("llama-tiny", R"({"hidden_sise": 3})", "hidden_size");
  expect("gpt-neo-tiny", R"({"num_hidden_layers": 1310072003})", "65536");
  Decoder model(tiny("llama-tiny"));
  EXPECT_THROW(model(torch::zeros({1, 13}, torch::kLong)), ShapeError);
}

} // namespace
} // namespace tessera::models
