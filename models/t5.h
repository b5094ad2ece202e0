#pragma once

#include <tuple>

#include <torch/nn/modules/container/modulelist.h>

#include "models/layers.h"
#include "models/options.h"

// T5 under the names and shapes of Hugging Face's checkpoints
// ("encoder.block.0.layer.0.SelfAttention.q.weight"). The aliases of
// "shared.weight" inside encoder and decoder are not repeated: both get the
// embedded tokens.
// Source: Raffel et al. 2020, section 2.1.
namespace tessera::models {

/// Bucket of the distance key - query: half of the buckets for exact small
/// distances, the rest logarithmic up to `max_distance`, beyond it the last.
/// `bidirectional` gives each sign its own half; else keys after the query
/// share bucket 0.
std::int64_t relative_position_bucket(
    std::int64_t distance,
    bool bidirectional,
    std::int64_t buckets,
    std::int64_t max_distance);

/// Layer norm without mean and bias, in f32. Shapes: x_BSI -> y_BSI.
class T5LayerNormImpl : public torch::nn::Module {
 public:
  explicit T5LayerNormImpl(const T5Options& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  double epsilon_;
  at::Tensor weight_;
};
TESSERA_MODULE(T5LayerNorm);

enum class T5Attends { kBothWays, kBackwards, kEncoder };

/// Attention without scaling; queries from x_BSI, keys and values from
/// source_BTI. Shapes: bias broadcastable to BHST or undefined -> y_BSI.
class T5AttentionImpl : public torch::nn::Module {
 public:
  T5AttentionImpl(const T5Options& options, T5Attends to, bool with_bias);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& source, const at::Tensor& bias);

  /// Relative position bias plus `mask` (may be undefined), and the causal mask
  /// of a decoder: [1 or B, H, S, S]. Only in the first block of a stack.
  at::Tensor position_bias(std::int64_t positions, const at::Tensor& mask);

 private:
  T5Options options_;
  T5Attends to_;
  Linear q_, k_, v_, o_;
  Embedding relative_attention_bias_;
};
// Not interceptable as a whole: position_bias is a second entry, so the layer
// around it is the unit; its linear layers are units again.
TORCH_MODULE(T5Attention);

/// x + attention(norm(x)). In the first block `bias` is the padding mask and
/// the result's second element is the stack's bias, in the others both are the
/// stack's bias. Shapes: x_BSI, bias -> (y_BSI, bias).
class T5LayerSelfAttentionImpl : public torch::nn::Module {
 public:
  T5LayerSelfAttentionImpl(const T5Options& options, T5Attends to, bool first);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& bias);

 private:
  double dropout_;
  bool first_;
  T5Attention attention_;
  T5LayerNorm layer_norm_;
};
TESSERA_MODULE(T5LayerSelfAttention);

/// x + attention(norm(x) over encoded). Shapes: x_BTI, encoded_BSI -> y_BTI.
class T5LayerCrossAttentionImpl : public torch::nn::Module {
 public:
  explicit T5LayerCrossAttentionImpl(const T5Options& options);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& encoded, const at::Tensor& mask_bias);

  T5Options options;

 private:
  double dropout_;
  T5Attention attention_;
  T5LayerNorm layer_norm_;
};
TESSERA_MODULE(T5LayerCrossAttention);

/// Either wi or, with a gate, wi_0 (activated) and wi_1. Shapes: x_BSI -> y_BSI.
class T5DenseReluDenseImpl : public torch::nn::Module {
 public:
  explicit T5DenseReluDenseImpl(const T5Options& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::string activation_;
  double dropout_;
  Linear activated_, gated_, wo_;
};
TESSERA_MODULE(T5DenseReluDense);

/// x + wo(relu(wi(norm(x)))), or with a gate. Shapes: x_BSI -> y_BSI.
class T5LayerFFImpl : public torch::nn::Module {
 public:
  explicit T5LayerFFImpl(const T5Options& options);
  at::Tensor forward(const at::Tensor& x);

  T5Options options;

 private:
  double dropout_;
  T5DenseReluDense dense_;
  T5LayerNorm layer_norm_;
};
TESSERA_MODULE(T5LayerFF);

/// (x_BSI, bias) -> (y_BSI, bias of the stack), so that blocks form a sequence.
class T5EncoderBlockImpl : public torch::nn::Module {
 public:
  T5EncoderBlockImpl(const T5Options& options, bool first);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& bias);

  T5Options options;
  bool first; // makes the stack's bias

 private:
  torch::nn::ModuleList layer_;
  T5LayerSelfAttention self_attention_;
  T5LayerFF feed_forward_;
};
TESSERA_MODULE(T5EncoderBlock);

/// (x_BTI, bias, encoded_BSI, mask) -> the same with the next x and the bias of
/// the stack.
class T5DecoderBlockImpl : public torch::nn::Module {
 public:
  using State = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

  T5DecoderBlockImpl(const T5Options& options, bool first);
  State forward(
      const at::Tensor& x,
      const at::Tensor& bias,
      const at::Tensor& encoded,
      const at::Tensor& mask_bias);

  T5Options options;
  bool first; // makes the stack's bias

 private:
  torch::nn::ModuleList layer_;
  T5LayerSelfAttention self_attention_;
  T5LayerCrossAttention cross_attention_;
  T5LayerFF feed_forward_;
};
TESSERA_MODULE(T5DecoderBlock);

/// Shapes: embedded_BSI, mask_BS (1 where there is a token; may be undefined)
/// -> encoded_BSI.
class T5EncoderImpl : public torch::nn::Module {
 public:
  explicit T5EncoderImpl(const T5Options& options);
  at::Tensor forward(const at::Tensor& embedded, const at::Tensor& mask);

 private:
  double dropout_;
  nn::Sequential block_;
  T5LayerNorm final_layer_norm_;
};
TESSERA_MODULE(T5Encoder);

/// Shapes: embedded_BTI, mask_BT, encoded_BSI, encoder_mask_BS -> hidden_BTI.
class T5DecoderImpl : public torch::nn::Module {
 public:
  explicit T5DecoderImpl(const T5Options& options);
  at::Tensor forward(
      const at::Tensor& embedded,
      const at::Tensor& mask,
      const at::Tensor& encoded,
      const at::Tensor& encoder_mask);

 private:
  double dropout_;
  nn::Sequential block_;
  T5LayerNorm final_layer_norm_;
};
TESSERA_MODULE(T5Decoder);

/// The whole model; one embedding serves encoder, decoder and, unless it has a weight of its own,
/// the output layer.
/// Shapes: ids_BS, decoder_ids_BT (int64), masks as the ids with 1 for tokens
/// -> logits_BTV.
class T5Impl : public torch::nn::Module {
 public:
  explicit T5Impl(const T5Options& options);
  at::Tensor forward(
      const at::Tensor& ids,
      const at::Tensor& decoder_ids,
      const at::Tensor& mask = {},
      const at::Tensor& decoder_mask = {});

 private:
  double output_scale_;
  Embedding shared_;
  T5Encoder encoder_;
  T5Decoder decoder_;
  TiedLinear tied_head_; // one of the two is there
  Linear own_head_;
};
TESSERA_MODULE(T5);

/// What the decoder reads when it shall say `targets_BT`: the start token, then
/// all but the last target; ignored targets become the start token, which is
/// T5's padding.
at::Tensor shift_right(const at::Tensor& targets, const T5Options& options);

} // namespace tessera::models
