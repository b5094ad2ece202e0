#include "tessera/nn/summa/transformer.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::nn::two_d {

namespace {

at::Tensor drop_out(const at::Tensor& x, double probability, bool training) {
  return training && probability > 0 ? at::dropout(x, probability, true) : x;
}

Linear2D linear_on_mesh(
    const Transformer2DOptions& options,
    const Blocks& in,
    const Blocks& out,
    int groups = 1) {
  return Linear2D(Linear2DOptions(in, out).groups(groups).out_in(options.out_in()));
}

} // namespace

Blocks Transformer2DOptions::hidden_blocks(const Mesh& mesh) const {
  if (heads < mesh.side() || hidden % heads != 0) {
    throw ShapeError(tessera::str(
        heads,
        " attention heads of a width of ",
        hidden,
        " on a mesh of ",
        mesh.side(),
        " x ",
        mesh.side(),
        "; expected a number of heads from ",
        mesh.side(),
        " on that divides ",
        hidden));
  }
  return Blocks(hidden, mesh.side(), hidden / heads);
}

Blocks Transformer2DOptions::inner_blocks(const Mesh& mesh) const {
  return Blocks(inner, mesh.side());
}

at::Tensor attend_locally(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    std::int64_t head_width,
    bool causal,
    const at::Tensor& bias,
    double dropout) {
  const auto batch = q.size(0);
  const auto positions = q.size(1);
  const auto heads = q.size(2) / head_width;
  const auto split = [&](const at::Tensor& x) {
    return x.view({batch, x.size(1), heads, head_width})
        .transpose(1, 2)
        .reshape({batch * heads, x.size(1), head_width});
  };
  const double scale = 1 / std::sqrt(static_cast<double>(head_width));
  at::Tensor scores = at::bmm(split(q * scale), split(k).transpose(1, 2));
  const auto keys = scores.size(2);
  if (causal) {
    const at::Tensor above =
        at::full({positions, keys}, -std::numeric_limits<double>::infinity(), q.options()).triu_(1);
    // The product itself is not used again: the sum is made in its place.
    scores = at::_unsafe_view(scores, scores.sizes()).add_(above);
  }
  if (bias.defined()) {
    scores = at::_unsafe_view(scores, {batch, heads, positions, keys})
                 .add_(bias)
                 .view({batch * heads, positions, keys});
  }
  at::Tensor weights = at::softmax(scores, -1);
  if (dropout > 0) {
    weights = at::dropout(weights, dropout, true);
  }
  return at::bmm(weights, split(v))
      .view({batch, heads, positions, head_width})
      .transpose(1, 2)
      .reshape({batch, positions, heads * head_width});
}

Attention2DImpl::Attention2DImpl(const Transformer2DOptions& options)
    : c_attn(nullptr), c_proj(nullptr), options_(options) {
  const Blocks hidden = options.hidden_blocks(*mesh());
  c_attn = register_module("c_attn", linear_on_mesh(options, hidden, hidden, 3));
  c_proj = register_module("c_proj", linear_on_mesh(options, hidden, hidden));
}

at::Tensor Attention2DImpl::forward(const at::Tensor& x) {
  const auto parts = c_attn(x).chunk(3, -1);
  const at::Tensor joined = attend_locally(
      parts[0],
      parts[1],
      parts[2],
      options_.hidden / options_.heads,
      options_.causal(),
      {},
      is_training() ? options_.dropout() : 0);
  return drop_out(c_proj(joined), options_.dropout(), is_training());
}

Mlp2DImpl::Mlp2DImpl(const Transformer2DOptions& options)
    : c_fc(nullptr), c_proj(nullptr), options_(options) {
  const Blocks hidden = options.hidden_blocks(*mesh());
  const Blocks inner = options.inner_blocks(*mesh());
  c_fc = register_module("c_fc", linear_on_mesh(options, hidden, inner));
  c_proj = register_module("c_proj", linear_on_mesh(options, inner, hidden));
}

at::Tensor Mlp2DImpl::forward(const at::Tensor& x) {
  const at::Tensor wide = at::gelu(c_fc(x), options_.tanh_gelu() ? "tanh" : "none");
  return drop_out(c_proj(wide), options_.dropout(), is_training());
}

TransformerLayer2DImpl::TransformerLayer2DImpl(const Transformer2DOptions& options)
    : ln_1(register_module("ln_1", LayerNorm2D(options.hidden_blocks(*mesh()), options.eps()))),
      attn(register_module("attn", Attention2D(options))),
      ln_2(register_module("ln_2", LayerNorm2D(options.hidden_blocks(*mesh()), options.eps()))),
      mlp(register_module("mlp", Mlp2D(options))),
      options_(options) {}

at::Tensor TransformerLayer2DImpl::forward(const at::Tensor& x) {
  if (options_.pre_norm()) {
    const at::Tensor attended = x + attn(ln_1(x));
    return attended + mlp(ln_2(attended));
  }
  const at::Tensor attended = ln_1(x + attn(x));
  return ln_2(attended + mlp(attended));
}

} // namespace tessera::nn::two_d
