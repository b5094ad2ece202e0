#include "models/two_d/gpt_2d.h"

#include <torch/torch.h>

#include "tessera/base/error.h"

namespace tessera::models {

namespace {

using nn::two_d::Blocks;
using nn::two_d::Embedding2D;
using nn::two_d::LayerNorm2D;
using nn::two_d::Mesh;
using nn::two_d::TiedLinear2D;
using nn::two_d::Transformer2DOptions;
using nn::two_d::TransformerLayer2D;

Transformer2DOptions layer_options(const GptOptions& options) {
  Transformer2DOptions result(options.n_embd, options.n_head);
  if (options.n_inner != 0) {
    result.inner = options.n_inner;
  }
  result.causal(true)
      .pre_norm(true)
      .tanh_gelu(true)
      .out_in(false)
      .eps(options.layer_norm_epsilon)
      .dropout(options.dropout);
  return result;
}

Blocks hidden_of(const GptOptions& options, const Mesh& mesh) {
  return layer_options(options).hidden_blocks(mesh);
}

} // namespace

GptTransformer2DImpl::GptTransformer2DImpl(const GptOptions& options)
    : wte(register_module(
          "wte",
          Embedding2D(Blocks(options.vocab_size, mesh()->side()), hidden_of(options, *mesh())))),
      positions_(options.n_positions),
      dropout_(options.dropout),
      wpe_(register_module(
          "wpe",
          Embedding2D(Blocks(options.n_positions, mesh()->side()), hidden_of(options, *mesh())))),
      h_(register_module("h", nn::Sequential())),
      ln_f_(nullptr) {
  for (std::int64_t i = 0; i < options.n_layer; ++i) {
    h_->push_back(TransformerLayer2D(layer_options(options)));
  }
  ln_f_ =
      register_module("ln_f", LayerNorm2D(hidden_of(options, *mesh()), options.layer_norm_epsilon));
}

at::Tensor GptTransformer2DImpl::forward(const at::Tensor& ids) {
  if (ids.dim() != 2 || ids.size(1) > positions_) {
    throw ShapeError(tessera::str(
        "gpt: ids are ",
        ids.sizes(),
        ", expected [batch, sequence] with a sequence of at most ",
        positions_,
        " (n_positions)"));
  }
  const at::Tensor places = at::arange(ids.size(1), ids.options());
  return ln_f_(h_(drop(wte(ids) + wpe_(places), dropout_, is_training())));
}

Gpt2DImpl::Gpt2DImpl(const GptOptions& options)
    : vocabulary_(options.vocab_size, mesh()->side()),
      boundary_(mesh(), parallel().prescaled_batch),
      transformer_(register_module("transformer", GptTransformer2D(options))),
      lm_head_(register_module(
          "lm_head",
          TiedLinear2D(*transformer_->wte, vocabulary_, hidden_of(options, *mesh())))) {}

Gpt2DImpl::Gpt2DImpl(const GptImpl& original)
    : Gpt2DImpl((check_mesh_options(original.options()), original.options())) {}

at::Tensor Gpt2DImpl::forward(const at::Tensor& ids) {
  const at::Tensor hidden = transformer_(boundary_.samples_of_row(ids));
  return boundary_.leave(lm_head_(hidden), vocabulary_);
}

} // namespace tessera::models
