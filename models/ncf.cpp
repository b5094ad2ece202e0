#include "models/ncf.h"

#include <cmath>

#include <torch/torch.h>

#include "tessera/nn/parallel/marking.h"

namespace tessera::models {

namespace {

constexpr double kEmbeddingDeviation = 0.01; // section 4.1 of the paper

// Glorot: the variance suits both directions of a layer of these widths.
Linear make_tower_layer(std::int64_t in, std::int64_t out) {
  return make_linear(in, out, std::sqrt(2.0 / static_cast<double>(in + out)));
}

} // namespace

NcfImpl::NcfImpl(const NcfOptions& options)
    : mf_user_embed_(register_module(
          "mf_user_embed",
          make_embedding(options.users, options.factors, kEmbeddingDeviation))),
      mf_item_embed_(register_module(
          "mf_item_embed",
          make_embedding(options.items, options.factors, kEmbeddingDeviation))),
      mlp_user_embed_(register_module(
          "mlp_user_embed",
          make_embedding(options.users, options.first_layer / 2, kEmbeddingDeviation))),
      mlp_item_embed_(register_module(
          "mlp_item_embed",
          make_embedding(options.items, options.first_layer / 2, kEmbeddingDeviation))),
      mlp_(register_module("mlp", nn::Sequential())),
      final_(nullptr) {
  const tensor_parallelism unmarked(false);
  auto width = options.first_layer;
  for (std::int64_t i = 0; i < options.layers; ++i) {
    mlp_->push_back(make_tower_layer(width, width / 2));
    mlp_->push_back(nn::ReLU());
    if (options.dropout > 0) {
      mlp_->push_back(nn::Dropout(options.dropout));
    }
    width /= 2;
  }
  final_ = register_module("final", make_tower_layer(options.factors + width, 1));
}

at::Tensor NcfImpl::forward(const at::Tensor& users, const at::Tensor& items) {
  const at::Tensor product = mf_user_embed_(users) * mf_item_embed_(items);
  const at::Tensor tower = mlp_(at::cat({mlp_user_embed_(users), mlp_item_embed_(items)}, -1));
  return final_(at::cat({product, tower}, -1)).squeeze(-1);
}

} // namespace tessera::models
