#include "tessera/nn/replace/builtin.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/embedding.h"
#include "tessera/nn/layers/layer_norm.h"
#include "tessera/nn/layers/linear.h"
#include "tessera/nn/replace/replacement_registry.h"

namespace tessera::nn {

namespace {

template <typename Original, typename Distributed>
auto built_in() {
  return TpRegistration<Original, detail::ImplOf<Distributed>>(/*built_in=*/true);
}

// These keep torch's names and layouts of states, so they need no state hooks.
void register_all() {
  built_in<torch::nn::LinearImpl, DistributedLinear>().init(
      [](const torch::nn::LinearImpl& linear) {
        return DistributedLinearOptions{
            linear.options.in_features(), linear.options.out_features(), linear.options.bias()};
      });
  built_in<torch::nn::EmbeddingImpl, DistributedEmbedding>().init(
      [](const torch::nn::EmbeddingImpl& embedding, const GivenOptions& given) {
        const auto& options = embedding.options;
        DistributedEmbeddingOptions result;
        result.num_embeddings = options.num_embeddings();
        result.embedding_dim = options.embedding_dim();
        result.padding_idx = options.padding_idx();
        result.max_norm = options.max_norm();
        result.norm_type = options.norm_type();
        result.scale_grad_by_freq = options.scale_grad_by_freq();
        result.sparse = options.sparse();
        given.take("split", result.split);
        return result;
      });
  built_in<torch::nn::LayerNormImpl, DistributedLayerNorm>().init(
      [](const torch::nn::LayerNormImpl& norm) {
        const auto& options = norm.options;
        if (!options.elementwise_affine() || options.normalized_shape().size() != 1) {
          throw ShapeError(
              "only norms over the last dimension, with weight and bias, have "
              "a distributed form");
        }
        return DistributedLayerNormOptions{options.normalized_shape().front(), options.eps()};
      });
}

} // namespace

void register_builtin_tp_rules() {
  static const bool once = [] {
    register_all();
    return true;
  }();
  (void)once;
}

} // namespace tessera::nn
