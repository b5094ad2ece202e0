#include "models/t5.h"

#include <algorithm>
#include <cmath>

#include <torch/torch.h>

#include "models/activations.h"
#include "models/distributed_forms.h"

namespace tessera::models {

namespace {

double root(std::int64_t value) {
  return std::sqrt(static_cast<double>(value));
}

// The deviations of Mesh TensorFlow's T5, which the published models used.
double width_deviation(const T5Options& o) {
  return o.initializer_factor / root(o.d_model);
}

Linear make_projection(std::int64_t in, std::int64_t out, double deviation) {
  return make_linear(in, out, deviation, false);
}

[[maybe_unused]] const bool kT5Distributed = register_t5_distributed();

} // namespace

std::int64_t relative_position_bucket(
    std::int64_t distance,
    bool bidirectional,
    std::int64_t buckets,
    std::int64_t max_distance) {
  std::int64_t bucket = 0;
  if (bidirectional) {
    buckets /= 2;
    bucket = distance > 0 ? buckets : 0;
    distance = std::abs(distance);
  } else {
    distance = std::max<std::int64_t>(-distance, 0);
  }
  const auto exact = buckets / 2;
  if (distance < exact) {
    return bucket + distance;
  }
  const double fraction = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                          std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const auto large =
      exact + static_cast<std::int64_t>(fraction * static_cast<double>(buckets - exact));
  return bucket + std::min(large, buckets - 1);
}

T5LayerNormImpl::T5LayerNormImpl(const T5Options& options)
    : epsilon_(options.layer_norm_epsilon),
      weight_(register_parameter("weight", torch::ones({options.d_model}))) {}

at::Tensor T5LayerNormImpl::forward(const at::Tensor& x) {
  const at::Tensor exact = x.to(at::promoteTypes(x.scalar_type(), at::kFloat));
  const at::Tensor scale = exact.square().mean(-1, /*keepdim=*/true).add_(epsilon_).rsqrt();
  return weight_ * (exact * scale).to(weight_.scalar_type());
}

T5AttentionImpl::T5AttentionImpl(const T5Options& options, T5Attends to, bool with_bias)
    : options_(options),
      to_(to),
      q_(nullptr),
      k_(nullptr),
      v_(nullptr),
      o_(nullptr),
      relative_attention_bias_(nullptr) {
  const auto& o = options;
  const auto inner = o.num_heads * o.d_kv;
  const double width = width_deviation(o);
  q_ = register_module("q", make_projection(o.d_model, inner, width / root(o.d_kv)));
  k_ = register_module("k", make_projection(o.d_model, inner, width));
  v_ = register_module("v", make_projection(o.d_model, inner, width));
  o_ = register_module("o", make_projection(inner, o.d_model, o.initializer_factor / root(inner)));
  if (with_bias) {
    relative_attention_bias_ = register_module(
        "relative_attention_bias",
        make_embedding(o.relative_attention_num_buckets, o.num_heads, width));
  }
}

at::Tensor
T5AttentionImpl::forward(const at::Tensor& x, const at::Tensor& source, const at::Tensor& bias) {
  return o_(attend(
      split_heads(q_(x), options_.num_heads),
      split_heads(k_(source), options_.num_heads),
      split_heads(v_(source), options_.num_heads),
      bias,
      options_.num_heads,
      /*scale=*/1,
      is_training() ? options_.dropout_rate : 0));
}

at::Tensor T5AttentionImpl::position_bias(std::int64_t positions, const at::Tensor& mask) {
  TESSERA_CHECK(!relative_attention_bias_.is_empty());
  // One row for each distance, not one for each pair: row i is of distance
  // i - (positions - 1).
  std::vector<std::int64_t> buckets;
  for (auto distance = 1 - positions; distance < positions; ++distance) {
    buckets.push_back(relative_position_bucket(
        distance,
        to_ == T5Attends::kBothWays,
        options_.relative_attention_num_buckets,
        options_.relative_attention_max_distance));
  }
  const at::Tensor rows = relative_attention_bias_(
      torch::tensor(buckets, at::kLong).to(relative_attention_bias_->weight.device()));
  // Query s sees the distances from -s on: a window that slides backwards.
  at::Tensor bias = rows.transpose(0, 1).unfold(1, positions, 1).flip({1}).unsqueeze(0);
  if (to_ == T5Attends::kBackwards) {
    bias = bias + causal_bias(positions, bias);
  }
  return mask.defined() ? bias + mask : bias;
}

T5LayerSelfAttentionImpl::T5LayerSelfAttentionImpl(
    const T5Options& options,
    T5Attends to,
    bool first)
    : dropout_(options.dropout_rate),
      first_(first),
      attention_(register_module("SelfAttention", T5Attention(options, to, first))),
      layer_norm_(register_module("layer_norm", T5LayerNorm(options))) {}

std::tuple<at::Tensor, at::Tensor> T5LayerSelfAttentionImpl::forward(
    const at::Tensor& x,
    const at::Tensor& bias) {
  const at::Tensor stack_bias = first_ ? attention_->position_bias(x.size(1), bias) : bias;
  const at::Tensor normed = layer_norm_(x);
  const at::Tensor update = attention_->forward(normed, normed, stack_bias);
  return {x + drop(update, dropout_, is_training()), stack_bias};
}

T5LayerCrossAttentionImpl::T5LayerCrossAttentionImpl(const T5Options& options)
    : options(options),
      dropout_(options.dropout_rate),
      attention_(
          register_module("EncDecAttention", T5Attention(options, T5Attends::kEncoder, false))),
      layer_norm_(register_module("layer_norm", T5LayerNorm(options))) {}

at::Tensor T5LayerCrossAttentionImpl::forward(
    const at::Tensor& x,
    const at::Tensor& encoded,
    const at::Tensor& mask_bias) {
  const at::Tensor update = attention_->forward(layer_norm_(x), encoded, mask_bias);
  return x + drop(update, dropout_, is_training());
}

T5DenseReluDenseImpl::T5DenseReluDenseImpl(const T5Options& options)
    : activation_(activation_of(options)),
      dropout_(options.dropout_rate),
      activated_(register_module(
          is_gated(options) ? "wi_0" : "wi",
          make_projection(options.d_model, options.d_ff, width_deviation(options)))),
      gated_(nullptr),
      wo_(nullptr) {
  if (is_gated(options)) {
    gated_ = register_module(
        "wi_1", make_projection(options.d_model, options.d_ff, width_deviation(options)));
  }
  wo_ = register_module(
      "wo",
      make_projection(
          options.d_ff, options.d_model, options.initializer_factor / root(options.d_ff)));
}

at::Tensor T5DenseReluDenseImpl::forward(const at::Tensor& x) {
  const at::Tensor inner = activate(activation_, activated_(x));
  return wo_(drop(gated_.is_empty() ? inner : inner * gated_(x), dropout_, is_training()));
}

T5LayerFFImpl::T5LayerFFImpl(const T5Options& options)
    : options(options),
      dropout_(options.dropout_rate),
      dense_(register_module("DenseReluDense", T5DenseReluDense(options))),
      layer_norm_(register_module("layer_norm", T5LayerNorm(options))) {}

at::Tensor T5LayerFFImpl::forward(const at::Tensor& x) {
  return x + drop(dense_(layer_norm_(x)), dropout_, is_training());
}

T5EncoderBlockImpl::T5EncoderBlockImpl(const T5Options& options, bool first)
    : options(options),
      first(first),
      layer_(register_module("layer", torch::nn::ModuleList())),
      self_attention_(options, T5Attends::kBothWays, first),
      feed_forward_(options) {
  layer_->push_back(self_attention_.ptr());
  layer_->push_back(feed_forward_.ptr());
}

std::tuple<at::Tensor, at::Tensor> T5EncoderBlockImpl::forward(
    const at::Tensor& x,
    const at::Tensor& bias) {
  const auto attended = self_attention_(x, bias);
  return {feed_forward_(std::get<0>(attended)), std::get<1>(attended)};
}

T5DecoderBlockImpl::T5DecoderBlockImpl(const T5Options& options, bool first)
    : options(options),
      first(first),
      layer_(register_module("layer", torch::nn::ModuleList())),
      self_attention_(options, T5Attends::kBackwards, first),
      cross_attention_(options),
      feed_forward_(options) {
  layer_->push_back(self_attention_.ptr());
  layer_->push_back(cross_attention_.ptr());
  layer_->push_back(feed_forward_.ptr());
}

T5DecoderBlockImpl::State T5DecoderBlockImpl::forward(
    const at::Tensor& x,
    const at::Tensor& bias,
    const at::Tensor& encoded,
    const at::Tensor& mask_bias) {
  const auto attended = self_attention_(x, bias);
  const at::Tensor crossed = cross_attention_(std::get<0>(attended), encoded, mask_bias);
  return {feed_forward_(crossed), std::get<1>(attended), encoded, mask_bias};
}

T5EncoderImpl::T5EncoderImpl(const T5Options& options)
    : dropout_(options.dropout_rate),
      block_(register_module("block", nn::Sequential())),
      final_layer_norm_(nullptr) {
  for (std::int64_t i = 0; i < options.num_layers; ++i) {
    block_->push_back(T5EncoderBlock(options, i == 0));
  }
  final_layer_norm_ = register_module("final_layer_norm", T5LayerNorm(options));
}

at::Tensor T5EncoderImpl::forward(const at::Tensor& embedded, const at::Tensor& mask) {
  const auto last = block_->forward_as<std::tuple<at::Tensor, at::Tensor>>(
      drop(embedded, dropout_, is_training()), padding_bias(mask, embedded.scalar_type()));
  return drop(final_layer_norm_(std::get<0>(last)), dropout_, is_training());
}

T5DecoderImpl::T5DecoderImpl(const T5Options& options)
    : dropout_(options.dropout_rate),
      block_(register_module("block", nn::Sequential())),
      final_layer_norm_(nullptr) {
  const auto layers =
      options.num_decoder_layers == 0 ? options.num_layers : options.num_decoder_layers;
  for (std::int64_t i = 0; i < layers; ++i) {
    block_->push_back(T5DecoderBlock(options, i == 0));
  }
  final_layer_norm_ = register_module("final_layer_norm", T5LayerNorm(options));
}

at::Tensor T5DecoderImpl::forward(
    const at::Tensor& embedded,
    const at::Tensor& mask,
    const at::Tensor& encoded,
    const at::Tensor& encoder_mask) {
  const auto last = block_->forward_as<T5DecoderBlockImpl::State>(
      drop(embedded, dropout_, is_training()),
      padding_bias(mask, embedded.scalar_type()),
      encoded,
      padding_bias(encoder_mask, embedded.scalar_type()));
  return drop(final_layer_norm_(std::get<0>(last)), dropout_, is_training());
}

T5Impl::T5Impl(const T5Options& options)
    : output_scale_(
          options.tie_word_embeddings && options.scale_decoder_outputs ? 1 / root(options.d_model)
                                                                       : 1),
      shared_(register_module(
          "shared",
          make_embedding(options.vocab_size, options.d_model, options.initializer_factor))),
      encoder_(register_module("encoder", T5Encoder(options))),
      decoder_(register_module("decoder", T5Decoder(options))),
      tied_head_(nullptr),
      own_head_(nullptr) {
  if (options.tie_word_embeddings) {
    tied_head_ = register_module("lm_head", TiedLinear(shared_->weight));
  } else {
    own_head_ = register_module(
        "lm_head", make_projection(options.d_model, options.vocab_size, width_deviation(options)));
  }
}

at::Tensor T5Impl::forward(
    const at::Tensor& ids,
    const at::Tensor& decoder_ids,
    const at::Tensor& mask,
    const at::Tensor& decoder_mask) {
  if (ids.dim() != 2 || decoder_ids.dim() != 2 || ids.size(0) != decoder_ids.size(0)) {
    throw ShapeError(tessera::str(
        "t5: ids are ",
        ids.sizes(),
        " and decoder ids ",
        decoder_ids.sizes(),
        ", expected [batch, sequence] with one batch"));
  }
  const at::Tensor encoded = encoder_(shared_(ids), mask);
  const at::Tensor hidden = decoder_(shared_(decoder_ids), decoder_mask, encoded, mask);
  return own_head_.is_empty() ? tied_head_(hidden * output_scale_) : own_head_(hidden);
}

at::Tensor shift_right(const at::Tensor& targets, const T5Options& options) {
  at::Tensor ids = at::full_like(targets, options.decoder_start_token_id);
  ids.slice(1, 1).copy_(targets.slice(1, 0, -1));
  return ids.masked_fill_(ids.eq(kIgnoredTarget), options.decoder_start_token_id);
}

} // namespace tessera::models
