#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/module.h"

// Letters of shapes: B samples, S positions (T of keys), H heads, D width of a
// head, I width of the model, V vocabulary, N = B * H.
namespace tessera::models {

using nn::Embedding;
using nn::LayerNorm;
using nn::Linear;

/// y = x W + b with W stored [in, out], the layout of GPT-2's checkpoints (a
/// torch Linear stores [out, in]).
/// Shapes: x_BSi -> y_BSo.
class Conv1DImpl : public torch::nn::Module {
 public:
  Conv1DImpl(std::int64_t in, std::int64_t out, double standard_deviation);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;
};
TESSERA_MODULE(Conv1D);

/// y = x W^T with a weight that another module owns, such as the output
/// layer of a language model that shares its embedding. Both modules hold the
/// same tensor, so a partitioner keeps them on one rank.
/// Shapes: x_BSI -> y_BSV, weight_VI.
class TiedLinearImpl : public torch::nn::Module {
 public:
  explicit TiedLinearImpl(at::Tensor weight);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
};
TESSERA_MODULE(TiedLinear);

/// Layers whose weights are drawn from normal(0, deviation), biases zero.
Embedding make_embedding(
    std::int64_t rows,
    std::int64_t width,
    double deviation,
    std::int64_t padding_row = -1); // >= 0: zero, and gets no gradient
Linear make_linear(std::int64_t in, std::int64_t out, double deviation, bool bias = true);

/// x_BSI -> heads_NSD.
at::Tensor split_heads(const at::Tensor& x, std::int64_t heads);

/// softmax(scale q k^T + bias) v, heads joined again.
/// Shapes: q_NSD, k_NTD, v_NTD, bias broadcastable to BHST (may be undefined), or first keys
/// (nn/layers/first_keys.h) of an attention that is then causal -> y_BSI.
///
/// bf16: products in bf16, the softmax sums in f32.
/// Cost: 4 N S T D flops; keeps N S T probabilities for the backward, with `checkpoint_attentions`
/// q, k and v alone.
at::Tensor attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& bias,
    std::int64_t heads,
    double scale,
    double dropout);

/// Inverted dropout; the tensor itself when `probability` is 0.
at::Tensor drop(const at::Tensor& x, double probability, bool training);

/// -inf above the diagonal, 0 elsewhere: [S, S]. `like` gives dtype and device.
at::Tensor causal_bias(std::int64_t positions, const at::Tensor& like);

/// 0 where mask_BT is nonzero and the lowest finite number elsewhere: [B, 1, 1,
/// T] (finite, so that a row without any key is uniform and not NaN).
/// Undefined for an undefined mask.
at::Tensor padding_bias(const at::Tensor& mask, at::ScalarType dtype);

/// Positions with this target do not count.
constexpr std::int64_t kIgnoredTarget = -100;

/// Mean cross entropy in f32 (f64 for logits of f64) over the targets that are not
/// kIgnoredTarget (NaN when there are none). Shapes: logits_...V, targets_...
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

} // namespace tessera::models
