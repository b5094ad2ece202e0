#include "tessera/nn/replace/drop_in.h"

#include "tessera/base/error.h"
#include "tessera/nn/replace/registry.h"

namespace tessera::nn::two_d {

namespace {

/// Modules made outside of a mesh are refused by their base with a better text.
Blocks blocks_of(std::int64_t length) {
  const MeshPtr& mesh = tensor_parallel().mesh;
  return Blocks(length, mesh == nullptr ? 1 : mesh->side());
}

const torch::nn::EmbeddingOptions& checked(const torch::nn::EmbeddingOptions& options) {
  if (options.max_norm().has_value() || options.scale_grad_by_freq() || options.sparse()) {
    throw ShapeError(
        "an embedding with max_norm, scale_grad_by_freq or sparse needs whole "
        "rows, which no rank of a mesh has");
  }
  return options;
}

} // namespace

DropInLinear2D::DropInLinear2D(const torch::nn::LinearOptions& options)
    : Linear2DImpl(
          Linear2DOptions(blocks_of(options.in_features()), blocks_of(options.out_features()))
              .bias(options.bias())),
      boundary_(mesh(), parallel().prescaled_batch) {}

at::Tensor DropInLinear2D::forward(const at::Tensor& x) {
  return boundary_.leave(
      Linear2DImpl::forward(boundary_.enter(x, Linear2DImpl::options().in)),
      Linear2DImpl::options().out);
}

DropInEmbedding2D::DropInEmbedding2D(const torch::nn::EmbeddingOptions& options)
    : Embedding2DImpl(
          blocks_of(checked(options).num_embeddings()),
          blocks_of(options.embedding_dim()),
          options.padding_idx().value_or(-1)),
      boundary_(mesh(), parallel().prescaled_batch),
      hidden_(blocks_of(options.embedding_dim())) {}

at::Tensor DropInEmbedding2D::forward(const at::Tensor& ids) {
  return boundary_.leave(Embedding2DImpl::forward(boundary_.samples_of_row(ids)), hidden_);
}

void register_mesh_rules() {
  tp_register_on_mesh<torch::nn::LinearImpl, DropInLinear2D>().init(
      [](const torch::nn::LinearImpl& linear) { return linear.options; });
  tp_register_on_mesh<torch::nn::EmbeddingImpl, DropInEmbedding2D>().init(
      [](const torch::nn::EmbeddingImpl& embedding) { return embedding.options; });
}

} // namespace tessera::nn::two_d
