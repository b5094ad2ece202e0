#pragma once

#include "tessera/nn/module/sequential.h"
#include "tessera/nn/summa/modules.h"

// A transformer layer on the mesh. Activations are [b of my row, s, h of my
// column]; a rank has whole sequences and some of the heads, so attention
// itself moves nothing. Calls are collective over the mesh. Threads: as
// torch::nn::Module. Source: Xu et al. 2021, section 3.2.1 and figure 4.
namespace tessera::nn::two_d {

struct Transformer2DOptions {
  Transformer2DOptions(std::int64_t hidden_size, std::int64_t head_count)
      : hidden(hidden_size), heads(head_count), inner(4 * hidden_size) {}

  /// Blocks of the hidden dimension: whole heads.
  /// Throws: ShapeError that says which numbers of heads work.
  Blocks hidden_blocks(const Mesh& mesh) const;
  Blocks inner_blocks(const Mesh& mesh) const;

  std::int64_t hidden;
  std::int64_t heads;
  std::int64_t inner;
  TORCH_ARG(bool, causal) = true;
  /// true: x + f(norm(x)); false: norm(x + f(x)).
  TORCH_ARG(bool, pre_norm) = true;
  /// GELU by tanh, as GPT-2; else by erf.
  TORCH_ARG(bool, tanh_gelu) = true;
  /// Weights stored [out, in] (torch) or [in, out] (GPT-2).
  TORCH_ARG(bool, out_in) = false;
  TORCH_ARG(double, eps) = 1e-5;
  TORCH_ARG(double, dropout) = 0;
};

/// softmax(q k^T / sqrt(width) + bias) v for heads that are all here.
/// Shapes: q, k, v [b, s, heads * width] -> the same; bias broadcastable to
/// [b, heads, s, s] or undefined. Not collective.
at::Tensor attend_locally(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    std::int64_t head_width,
    bool causal,
    const at::Tensor& bias,
    double dropout);

/// Self-attention with one product for query, key and value.
class Attention2DImpl : public MeshModule {
 public:
  explicit Attention2DImpl(const Transformer2DOptions& options);
  at::Tensor forward(const at::Tensor& x);

  Linear2D c_attn;
  Linear2D c_proj;

 private:
  Transformer2DOptions options_;
};
TESSERA_MODULE(Attention2D);

/// Two products with a GELU between.
class Mlp2DImpl : public MeshModule {
 public:
  explicit Mlp2DImpl(const Transformer2DOptions& options);
  at::Tensor forward(const at::Tensor& x);

  Linear2D c_fc;
  Linear2D c_proj;

 private:
  Transformer2DOptions options_;
};
TESSERA_MODULE(Mlp2D);

/// Attention and MLP with their norms and residual sums, under GPT-2's names:
/// ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj.
class TransformerLayer2DImpl : public MeshModule {
 public:
  explicit TransformerLayer2DImpl(const Transformer2DOptions& options);
  at::Tensor forward(const at::Tensor& x);

  const Transformer2DOptions& options() const {
    return options_;
  }

  LayerNorm2D ln_1;
  Attention2D attn;
  LayerNorm2D ln_2;
  Mlp2D mlp;

 private:
  Transformer2DOptions options_;
};
TESSERA_MODULE(TransformerLayer2D);

} // namespace tessera::nn::two_d
