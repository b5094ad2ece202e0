#include "models/decoder.h"

#include <vector>

#include <ATen/OpMathType.h>
#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/attend.h"
#include "tessera/nn/layers/first_keys.h"
#include "tessera/nn/layers/rotary.h"
#include "tessera/recompute/attentions.h"
#include "tessera/recompute/kept_products.h"

#include "models/activations.h"
#include "models/distributed_forms.h"

namespace tessera::models {

namespace {

[[maybe_unused]] const bool registered = register_decoder_distributed();

Linear linear_of(const DecoderOptions& o, std::int64_t in, std::int64_t out, bool bias) {
  return make_linear(in, out, o.initializer_range, bias);
}

} // namespace

DecoderNormImpl::DecoderNormImpl(const DecoderOptions& options)
    : weight(register_parameter("weight", torch::ones({options.hidden_size}))),
      epsilon_(options.norm_epsilon) {
  if (options.architecture != "llama") {
    bias = register_parameter("bias", torch::zeros({options.hidden_size}));
  }
}

at::Tensor DecoderNormImpl::forward(const at::Tensor& x) {
  if (bias.defined()) {
    return at::layer_norm(x, weight.sizes(), weight, bias, epsilon_);
  }
  const at::Tensor exact = x.to(at::toOpMathType(x.scalar_type()));
  const at::Tensor scale = exact.square().mean(-1, /*keepdim=*/true).add_(epsilon_).rsqrt();
  return weight * (exact * scale).to(weight.scalar_type());
}

DecoderAttentionImpl::DecoderAttentionImpl(const DecoderOptions& options, std::int64_t layer)
    : layer_(decoder_layer_options(options, layer)), dropout_(layer_.hidden_dropout_prob) {
  const DecoderNames& names = decoder_names(options);
  const std::int64_t width = options.hidden_size;
  const std::int64_t queries = layer_.num_attention_heads * layer_.attention_head_size;
  const bool bias = layer_.query_key_value_bias;
  if (names.query_key_value.empty()) {
    const std::int64_t keys = key_value_heads(options) * layer_.attention_head_size;
    query_ = register_module(names.query, linear_of(options, width, queries, bias));
    key_ = register_module(names.key, linear_of(options, width, keys, bias));
    value_ = register_module(names.value, linear_of(options, width, keys, bias));
  } else {
    query_key_value_ =
        register_module(names.query_key_value, linear_of(options, width, 3 * queries, bias));
  }
  out_ = register_module(
      names.attention_out, linear_of(options, queries, width, layer_.attention_dense_bias));
}

at::Tensor DecoderAttentionImpl::forward(const at::Tensor& x, const at::Tensor& first_keys) {
  const std::int64_t width = layer_.attention_head_size;
  const auto heads = [&](const at::Tensor& t) { return t.view({x.size(0), x.size(1), -1, width}); };
  std::vector<at::Tensor> qkv;
  if (query_key_value_.is_empty()) {
    qkv = {heads(query_(x)), heads(key_(x)), heads(value_(x))};
  } else {
    qkv = query_key_value_(x)
              .view({x.size(0), x.size(1), layer_.num_attention_heads, 3, width})
              .unbind(3);
  }
  const nn::AttentionRule rule = nn::rule_of(
      layer_, {}, /*cross=*/false, is_training(), qkv[0].scalar_type(), qkv[0].device());
  const nn::Rotary rotary{nn::rotary_width(layer_), layer_.rotary_base, layer_.rotary_interleaved};
  const auto attention = [rule, rotary](const std::vector<at::Tensor>& given) {
    const bool turns = rotary.width > 0;
    const at::Tensor q = turns ? nn::turned_by_position(rotary, given[0]) : given[0];
    const at::Tensor k = turns ? nn::turned_by_position(rotary, given[1]) : given[1];
    return nn::attend_over_heads({}, q, k, given[2], given[3], rule);
  };
  qkv.push_back(first_keys);
  const bool recomputed = recompute::attentions_recomputed() && !rule.blockwise;
  const at::Tensor joined =
      recomputed ? recompute::recompute_attention("an attention of the model", qkv, attention)
                 : attention(qkv);
  return drop(out_(joined), dropout_, is_training());
}

DecoderMlpImpl::DecoderMlpImpl(const DecoderOptions& options, std::int64_t layer)
    : activation_(options.hidden_act) {
  const DecoderNames& names = decoder_names(options);
  const nn::TransformerOptions of_layer = decoder_layer_options(options, layer);
  const std::int64_t wide = of_layer.intermediate_size;
  const bool bias = of_layer.output_bias;
  dropout_ = of_layer.hidden_dropout_prob;
  if (!names.gate.empty()) {
    gate_ = register_module(names.gate, linear_of(options, options.hidden_size, wide, bias));
  }
  inner_ = register_module(names.inner, linear_of(options, options.hidden_size, wide, bias));
  outer_ = register_module(names.outer, linear_of(options, wide, options.hidden_size, bias));
}

at::Tensor DecoderMlpImpl::forward(const at::Tensor& x) {
  const at::Tensor inner = gate_.is_empty() ? activate(activation_, inner_(x))
                                            : activate(activation_, gate_(x)) * inner_(x);
  const recompute::ReturnedProduct returned;
  return drop(outer_(inner), dropout_, is_training());
}

namespace {

/// Holds the attention where its name has two parts ("attn.attention").
struct DecoderAttentionHolderImpl : torch::nn::Module {
  DecoderAttentionHolderImpl(const std::string& name, const DecoderAttention& attention) {
    register_module(name, attention);
  }
};

} // namespace

DecoderBlockImpl::DecoderBlockImpl(const DecoderOptions& given, std::int64_t of_layer)
    : options(given), layer(of_layer) {
  const DecoderNames& names = decoder_names(options);
  in_parallel_ = decoder_layer_options(options, layer).parallel_attention_output;
  first_norm_ = register_module(names.first_norm, DecoderNorm(options));
  attention_ = DecoderAttention(options, layer);
  const std::size_t dot = names.attention.find('.');
  if (dot == std::string::npos) {
    register_module(names.attention, attention_);
  } else {
    register_module(
        names.attention.substr(0, dot),
        std::make_shared<DecoderAttentionHolderImpl>(names.attention.substr(dot + 1), attention_));
  }
  if (!names.second_norm.empty()) {
    second_norm_ = register_module(names.second_norm, DecoderNorm(options));
  }
  mlp_ = register_module("mlp", DecoderMlp(options, layer));
}

DecoderBlockImpl::State DecoderBlockImpl::forward(at::Tensor x, const at::Tensor& first_keys) {
  const at::Tensor normed = first_norm_(x);
  if (in_parallel_) {
    const at::Tensor attended = attention_(normed, first_keys);
    const recompute::ReturnedCall returned(static_cast<const torch::nn::Module*>(this));
    const at::Tensor for_mlp = second_norm_.is_empty() ? normed : second_norm_(x);
    return {returned.of(x + (attended + mlp_(for_mlp))), first_keys};
  }
  x = x + attention_(normed, first_keys);
  const recompute::ReturnedCall returned(static_cast<const torch::nn::Module*>(this));
  return {returned.of(x + mlp_(second_norm_(x))), first_keys};
}

DecoderStackImpl::DecoderStackImpl(const DecoderOptions& options)
    : positions_(options.max_position_embeddings),
      dropout_(options.architecture == "llama" ? 0 : options.dropout) {
  const DecoderNames& names = decoder_names(options);
  const auto embedding = [&](std::int64_t rows) {
    return make_embedding(rows, options.hidden_size, options.initializer_range);
  };
  table = register_module(names.table, embedding(options.vocab_size));
  if (!names.positions.empty()) {
    position_table_ = register_module(names.positions, embedding(positions_));
  }
  layers_ = register_module(names.layers, nn::Sequential());
  for (std::int64_t i = 0; i < options.num_hidden_layers; ++i) {
    layers_->push_back(DecoderBlock(options, i));
  }
  last_norm_ = register_module(names.last_norm, DecoderNorm(options));
}

at::Tensor DecoderStackImpl::forward(
    const at::Tensor& ids,
    const at::Tensor& document_begins,
    const at::Tensor& positions) {
  if (ids.dim() != 2 || ids.size(1) > positions_) {
    throw ShapeError(tessera::str(
        "decoder: ids are ",
        ids.sizes(),
        ", expected [batch, sequence] with a sequence of at most ",
        positions_,
        " (max_position_embeddings)"));
  }
  if (positions.defined() && position_table_.is_empty() && !document_begins.defined()) {
    throw ShapeError(
        "decoder: positions are given without document begins, and this model has no position "
        "embedding: its attention knows distances alone; leave them out");
  }
  at::Tensor x = table(ids);
  if (!position_table_.is_empty()) {
    x = x +
        position_table_(positions.defined() ? positions : at::arange(ids.size(1), ids.options()));
  }
  const auto last = layers_->forward_as<DecoderBlockImpl::State>(
      drop(x, dropout_, is_training()), nn::first_keys(document_begins));
  return last_norm_(std::get<0>(last));
}

DecoderImpl::DecoderImpl(const DecoderOptions& options) : options_(options) {
  const DecoderNames& names = decoder_names(options);
  stack_ = register_module(names.root, DecoderStack(options));
  if (options.tie_word_embeddings) {
    tied_head_ = register_module(names.head, TiedLinear(stack_->table->weight));
  } else {
    own_head_ = register_module(
        names.head,
        linear_of(
            options, options.hidden_size, options.vocab_size, options.architecture == "gptj"));
  }
}

at::Tensor DecoderImpl::forward(
    const at::Tensor& ids,
    const at::Tensor& targets,
    const at::Tensor& document_begins,
    const at::Tensor& positions) {
  const at::Tensor hidden = stack_(ids, document_begins, positions);
  const at::Tensor logits = own_head_.is_empty() ? tied_head_(hidden) : own_head_(hidden);
  return targets.defined() ? cross_entropy(logits, targets) : logits;
}

} // namespace tessera::models
