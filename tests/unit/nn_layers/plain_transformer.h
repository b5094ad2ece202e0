#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/nn/layers/transformer_options.h"

/// The functions of the distributed transformer modules written with torch's
/// own layers, under the same parameter names.
namespace tessera::testing {

using nn::TransformerOptions;

struct PlainNormImpl : torch::nn::Module {
  PlainNormImpl(const TransformerOptions& o) : options(o) {
    weight = register_parameter("weight", torch::ones({o.hidden_size}));
    if (!o.rms_layernorm) {
      bias = register_parameter("bias", torch::zeros({o.hidden_size}));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (options.rms_layernorm) {
      return weight * x * (x.square().mean(-1, true) + options.layernorm_epsilon).rsqrt();
    }
    return torch::layer_norm(x, {options.hidden_size}, weight, bias, options.layernorm_epsilon);
  }
  TransformerOptions options;
  torch::Tensor weight, bias;
};
TORCH_MODULE(PlainNorm);

inline torch::nn::Linear
plain_linear(const TransformerOptions& o, std::int64_t in, std::int64_t out, bool bias = true) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(o.linear_bias && bias));
}

/// x_BHSD with its first channels multiplied by e^(i p f) as complex numbers.
inline torch::Tensor plain_rotary(const TransformerOptions& o, const torch::Tensor& x) {
  const auto width = static_cast<std::int64_t>(
      std::lround(o.rotary_pct * static_cast<double>(o.attention_head_size)));
  std::vector<torch::Tensor> channels = x.unbind(-1);
  std::vector<torch::Tensor> turned = channels;
  for (std::int64_t i = 0; i < width / 2; ++i) {
    const auto first = o.rotary_interleaved ? 2 * i : i;
    const auto second = o.rotary_interleaved ? 2 * i + 1 : i + width / 2;
    const auto angle =
        torch::arange(x.size(2)) *
        std::pow(o.rotary_base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
    const auto number = torch::complex(channels[first], channels[second]) *
                        torch::polar(torch::ones({x.size(2)}), angle);
    turned[first] = torch::real(number);
    turned[second] = torch::imag(number);
  }
  return torch::stack(turned, -1);
}

/// [S, T]: how far a key is before a query.
inline torch::Tensor plain_distances(std::int64_t queries, std::int64_t keys) {
  return torch::arange(queries).unsqueeze(1) - torch::arange(keys);
}

struct PlainAttentionImpl : torch::nn::Module {
  PlainAttentionImpl(const TransformerOptions& o, bool is_cross) : options(o), cross(is_cross) {
    const auto inner = o.num_attention_heads * o.attention_head_size;
    if (o.pre_layernorm) {
      pre_layernorm = register_module("pre_layernorm", PlainNorm(o));
    }
    if (cross) {
      query = register_module("query", plain_linear(o, o.hidden_size, inner));
      key_value = register_module("key_value", plain_linear(o, o.hidden_size, 2 * inner));
    } else {
      query_key_value = register_module(
          "query_key_value",
          plain_linear(
              o,
              o.hidden_size,
              inner + 2 * key_heads() * o.attention_head_size,
              o.query_key_value_bias));
    }
    dense = register_module("dense", plain_linear(o, inner, o.hidden_size, o.attention_dense_bias));
    if (o.post_layernorm) {
      layernorm = register_module("layernorm", PlainNorm(o));
    }
  }
  std::int64_t key_heads() const {
    return options.num_key_value_heads > 0 ? options.num_key_value_heads
                                           : options.num_attention_heads;
  }
  /// [B, H, S, D] each, keys and values as often as they are used.
  std::vector<torch::Tensor> heads(const torch::Tensor& x, const torch::Tensor& states) {
    const auto& o = options;
    std::vector<torch::Tensor> qkv;
    if (cross) {
      qkv = key_value(states).chunk(2, -1);
      qkv.insert(qkv.begin(), query(x));
    } else if (o.num_key_value_heads > 0) {
      const auto shared = o.num_attention_heads / key_heads();
      const auto all = query_key_value(x).view(
          {x.size(0), x.size(1), key_heads(), shared + 2, o.attention_head_size});
      qkv = {all.slice(3, 0, shared).flatten(2)};
      for (const auto kind : {shared, shared + 1}) {
        qkv.push_back(all.select(3, kind).repeat_interleave(shared, 2).flatten(2));
      }
    } else {
      qkv = query_key_value(x).chunk(3, -1);
    }
    for (auto& t : qkv) {
      t = t.view({t.size(0), t.size(1), o.num_attention_heads, -1}).transpose(1, 2);
    }
    return qkv;
  }
  torch::Tensor
  forward(const torch::Tensor& hidden, const torch::Tensor& mask, const torch::Tensor& states) {
    const auto& o = options;
    const auto sum =
        hidden + update(o.pre_layernorm ? pre_layernorm(hidden) : hidden, mask, states);
    return o.post_layernorm ? layernorm(sum) : sum;
  }
  torch::Tensor
  update(const torch::Tensor& x, const torch::Tensor& mask, const torch::Tensor& states) {
    const auto& o = options;
    auto qkv = heads(x, states);
    if (!cross && o.rotary_pct > 0) {
      qkv[0] = plain_rotary(o, qkv[0]);
      qkv[1] = plain_rotary(o, qkv[1]);
    }
    auto scores = torch::matmul(qkv[0], qkv[1].transpose(2, 3));
    if (o.scale_attention_scores) {
      scores = scores / std::sqrt(static_cast<double>(o.attention_head_size));
    }
    if (o.scale_attn_by_layer_idx) {
      scores = scores / static_cast<double>(o.layer_idx + 1);
    }
    if (mask.defined()) {
      scores = scores + mask;
    }
    const auto distances = plain_distances(scores.size(2), scores.size(3));
    if (!cross && o.use_alibi) {
      std::vector<torch::Tensor> biases;
      for (std::int64_t h = 0; h < o.num_attention_heads; ++h) {
        const double share =
            static_cast<double>(h + 1) / static_cast<double>(o.num_attention_heads);
        biases.push_back(distances * -std::pow(2.0, -o.alibi_bias_max * share));
      }
      scores = scores + torch::stack(biases).to(torch::kFloat);
    }
    if (!cross && o.attention_window > 0 && (o.layer_idx + 1) % o.attention_window_period == 0) {
      scores = scores.masked_fill(
          distances.ge(o.attention_window), -std::numeric_limits<float>::infinity());
    }
    if (o.causal_mask_size && !cross) {
      scores = scores.masked_fill(
          torch::ones({scores.size(2), scores.size(3)}).triu(1).ne(0),
          -std::numeric_limits<float>::infinity());
    }
    const auto joined =
        torch::matmul(torch::softmax(scores, -1), qkv[2]).transpose(1, 2).flatten(2);
    return dense(joined);
  }
  TransformerOptions options;
  bool cross;
  PlainNorm pre_layernorm{nullptr}, layernorm{nullptr};
  torch::nn::Linear query_key_value{nullptr}, query{nullptr}, key_value{nullptr}, dense{nullptr};
};
TORCH_MODULE(PlainAttention);

struct PlainOutputImpl : torch::nn::Module {
  explicit PlainOutputImpl(const TransformerOptions& o) : options(o) {
    if (o.pre_layernorm && !o.shared_layernorm) {
      pre_layernorm = register_module("pre_layernorm", PlainNorm(o));
    }
    const auto wide = (o.gated_output ? 2 : 1) * o.intermediate_size;
    dense1 = register_module("dense1", plain_linear(o, o.hidden_size, wide, o.output_bias));
    dense2 = register_module(
        "dense2", plain_linear(o, o.intermediate_size, o.hidden_size, o.output_bias));
    if (o.post_layernorm) {
      layernorm = register_module("layernorm", PlainNorm(o));
    }
  }
  torch::Tensor forward(const torch::Tensor& hidden) {
    const auto& o = options;
    const auto sum = hidden + update(o.pre_layernorm ? pre_layernorm(hidden) : hidden);
    return o.post_layernorm ? layernorm(sum) : sum;
  }
  torch::Tensor update(const torch::Tensor& x) {
    const auto& o = options;
    const auto wide = dense1(x);
    auto inner = o.gated_output ? wide.slice(-1, 0, o.intermediate_size) : wide;
    inner = o.activation == "relu"        ? torch::relu(inner)
            : o.activation == "silu"      ? inner * torch::sigmoid(inner)
            : o.activation == "gelu_tanh" ? torch::gelu(inner, "tanh")
                                          : torch::gelu(inner);
    if (o.gated_output) {
      inner = inner * wide.slice(-1, o.intermediate_size);
    }
    return dense2(inner);
  }
  TransformerOptions options;
  PlainNorm pre_layernorm{nullptr}, layernorm{nullptr};
  torch::nn::Linear dense1{nullptr}, dense2{nullptr};
};
TORCH_MODULE(PlainOutput);

struct PlainLayerImpl : torch::nn::Module {
  explicit PlainLayerImpl(const TransformerOptions& o) : options(o) {
    attention = register_module("attention", PlainAttention(o, false));
    if (o.add_cross_attention) {
      cross_attention = register_module("cross_attention", PlainAttention(o, true));
    }
    output = register_module("output", PlainOutput(o));
  }
  torch::Tensor forward(
      torch::Tensor x,
      const torch::Tensor& mask,
      const torch::Tensor& states,
      const torch::Tensor& cross_mask) {
    if (options.parallel_attention_output) {
      const auto first = attention->pre_layernorm(x);
      const auto second = options.shared_layernorm ? first : output->pre_layernorm(x);
      return x + attention->update(first, mask, torch::Tensor()) + output->update(second);
    }
    x = attention(x, mask, torch::Tensor());
    if (!cross_attention.is_empty()) {
      x = cross_attention(x, cross_mask, states);
    }
    return output(x);
  }
  TransformerOptions options;
  PlainAttention attention{nullptr}, cross_attention{nullptr};
  PlainOutput output{nullptr};
};
TORCH_MODULE(PlainLayer);

struct PlainTransformerImpl : torch::nn::Module {
  explicit PlainTransformerImpl(const TransformerOptions& o) {
    for (std::int64_t i = 0; i < o.num_layers; ++i) {
      TransformerOptions of_layer = o;
      of_layer.layer_idx = i;
      seq_layers->push_back(PlainLayer(of_layer));
    }
    register_module("seq_layers", seq_layers);
  }
  torch::Tensor forward(
      torch::Tensor x,
      const torch::Tensor& mask,
      const torch::Tensor& states,
      const torch::Tensor& cross_mask) {
    for (const auto& layer : *seq_layers) {
      x = layer->as<PlainLayerImpl>()->forward(x, mask, states, cross_mask);
    }
    return x;
  }
  torch::nn::ModuleList seq_layers;
};
TORCH_MODULE(PlainTransformer);

struct PlainLMHeadImpl : torch::nn::Module {
  explicit PlainLMHeadImpl(const TransformerOptions& o) : options(o) {
    const auto table = [&](std::int64_t rows) {
      return torch::nn::Embedding(
          torch::nn::EmbeddingOptions(rows, o.hidden_size)
              ._weight(torch::empty({rows, o.hidden_size}).normal_(0, o.initializer_range)));
    };
    word_embedding = register_module("word_embedding", table(o.vocab_size));
    if (!o.use_alibi && o.rotary_pct == 0) {
      position_embedding = register_module("position_embedding", table(o.num_positions));
    }
    if (o.num_token_types > 0) {
      token_type_embedding = register_module("token_type_embedding", table(o.num_token_types));
    }
    transformer = register_module("transformer", PlainTransformer(o));
    if (o.pre_layernorm && !o.post_layernorm) {
      layernorm = register_module("layernorm", PlainNorm(o));
    }
  }
  /// Logits. Masks are 1 where a position is hidden.
  torch::Tensor forward(
      const torch::Tensor& ids,
      const torch::Tensor& mask,
      const torch::Tensor& types,
      const torch::Tensor& positions,
      const torch::Tensor& states,
      const torch::Tensor& cross_mask) {
    const auto added = [](const torch::Tensor& hidden) {
      return hidden.defined() ? hidden.to(torch::kFloat).mul(-1e30).unsqueeze(1).unsqueeze(1)
                              : hidden;
    };
    auto x = word_embedding(ids);
    if (!position_embedding.is_empty()) {
      x = x + position_embedding(positions.defined() ? positions : torch::arange(ids.size(1)));
    }
    if (!token_type_embedding.is_empty()) {
      x = x + token_type_embedding(types.defined() ? types : torch::zeros_like(ids));
    }
    x = transformer(x, added(mask), states, added(cross_mask));
    if (!layernorm.is_empty()) {
      x = layernorm(x);
    }
    return torch::matmul(x, word_embedding->weight.t());
  }
  TransformerOptions options;
  torch::nn::Embedding word_embedding{nullptr}, position_embedding{nullptr},
      token_type_embedding{nullptr};
  PlainTransformer transformer{nullptr};
  PlainNorm layernorm{nullptr};
};
TORCH_MODULE(PlainLMHead);

} // namespace tessera::testing
