#pragma once

#include <cmath>
#include <limits>
#include <string>

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
plain_linear(const TransformerOptions& o, std::int64_t in, std::int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(o.linear_bias));
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
      query_key_value =
          register_module("query_key_value", plain_linear(o, o.hidden_size, 3 * inner));
    }
    dense = register_module("dense", plain_linear(o, inner, o.hidden_size));
    if (o.post_layernorm) {
      layernorm = register_module("layernorm", PlainNorm(o));
    }
  }
  torch::Tensor
  forward(const torch::Tensor& hidden, const torch::Tensor& mask, const torch::Tensor& states) {
    const auto& o = options;
    const auto x = o.pre_layernorm ? pre_layernorm(hidden) : hidden;
    std::vector<torch::Tensor> qkv;
    if (cross) {
      qkv = key_value(states).chunk(2, -1);
      qkv.insert(qkv.begin(), query(x));
    } else {
      qkv = query_key_value(x).chunk(3, -1);
    }
    for (auto& t : qkv) {
      t = t.view({t.size(0), t.size(1), o.num_attention_heads, -1}).transpose(1, 2);
    }
    auto scores = torch::matmul(qkv[0], qkv[1].transpose(2, 3));
    if (o.scale_attention_scores) {
      scores = scores / std::sqrt(static_cast<double>(o.attention_head_size));
    }
    if (mask.defined()) {
      scores = scores + mask;
    }
    if (o.causal_mask_size && !cross) {
      scores = scores.masked_fill(
          torch::ones({scores.size(2), scores.size(3)}).triu(1).ne(0),
          -std::numeric_limits<float>::infinity());
    }
    const auto joined =
        torch::matmul(torch::softmax(scores, -1), qkv[2]).transpose(1, 2).flatten(2);
    const auto sum = hidden + dense(joined);
    return o.post_layernorm ? layernorm(sum) : sum;
  }
  TransformerOptions options;
  bool cross;
  PlainNorm pre_layernorm{nullptr}, layernorm{nullptr};
  torch::nn::Linear query_key_value{nullptr}, query{nullptr}, key_value{nullptr}, dense{nullptr};
};
TORCH_MODULE(PlainAttention);

struct PlainOutputImpl : torch::nn::Module {
  explicit PlainOutputImpl(const TransformerOptions& o) : options(o) {
    if (o.pre_layernorm) {
      pre_layernorm = register_module("pre_layernorm", PlainNorm(o));
    }
    dense1 = register_module("dense1", plain_linear(o, o.hidden_size, o.intermediate_size));
    dense2 = register_module("dense2", plain_linear(o, o.intermediate_size, o.hidden_size));
    if (o.post_layernorm) {
      layernorm = register_module("layernorm", PlainNorm(o));
    }
  }
  torch::Tensor forward(const torch::Tensor& hidden) {
    const auto& o = options;
    auto inner = dense1(o.pre_layernorm ? pre_layernorm(hidden) : hidden);
    inner = o.activation == "relu"        ? torch::relu(inner)
            : o.activation == "gelu_tanh" ? torch::gelu(inner, "tanh")
                                          : torch::gelu(inner);
    const auto sum = hidden + dense2(inner);
    return o.post_layernorm ? layernorm(sum) : sum;
  }
  TransformerOptions options;
  PlainNorm pre_layernorm{nullptr}, layernorm{nullptr};
  torch::nn::Linear dense1{nullptr}, dense2{nullptr};
};
TORCH_MODULE(PlainOutput);

struct PlainLayerImpl : torch::nn::Module {
  explicit PlainLayerImpl(const TransformerOptions& o) {
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
    x = attention(x, mask, torch::Tensor());
    if (!cross_attention.is_empty()) {
      x = cross_attention(x, cross_mask, states);
    }
    return output(x);
  }
  PlainAttention attention{nullptr}, cross_attention{nullptr};
  PlainOutput output{nullptr};
};
TORCH_MODULE(PlainLayer);

struct PlainTransformerImpl : torch::nn::Module {
  explicit PlainTransformerImpl(const TransformerOptions& o) {
    for (std::int64_t i = 0; i < o.num_layers; ++i) {
      seq_layers->push_back(PlainLayer(o));
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
    position_embedding = register_module("position_embedding", table(o.num_positions));
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
    auto x = word_embedding(ids) +
             position_embedding(positions.defined() ? positions : torch::arange(ids.size(1)));
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
