#pragma once

#include <map>
#include <string>

#include "tessera/nn/layers/transformer_layer.h"
#include "tessera/nn/summa/mesh.h"

#include "cases.h"

namespace tessera::nn::summa::cases {

using FullTensors = std::map<std::string, at::Tensor>;

/// Calls `visit(name, parameter, shard)` for all that this rank holds.
template <typename Visit>
void for_each_shard(torch::nn::Module& module, const Visit& visit) {
  for (const auto& entry : module.named_modules()) {
    const auto* part = dynamic_cast<const DistributedModule*>(entry.value().get());
    if (part == nullptr) {
      continue;
    }
    for (const auto& [name, description] : part->distributed_parameters()) {
      visit(
          entry.key().empty() ? name : entry.key() + "." + name,
          entry.value()->named_parameters(false)[name],
          description.shard);
    }
  }
}

inline void load_full(torch::nn::Module& module, const FullTensors& full) {
  const torch::NoGradGuard no_grad;
  for_each_shard(module, [&](const std::string& name, at::Tensor local, const Shard& shard) {
    local.copy_(take_shard(shard, full.at(name)));
  });
}

/// `full` by the names of `module`'s parameters.
inline void
require_gradients(torch::nn::Module& module, const FullTensors& full, double tolerance) {
  for_each_shard(module, [&](const std::string& name, const at::Tensor& local, const Shard& shard) {
    require_close(local.grad(), take_shard(shard, full.at(name)), tolerance, "gradient of " + name);
  });
}

/// Of a layer that norms first, without dropout, under a causal mask.
inline TransformerOptions layer_options(std::int64_t hidden, std::int64_t heads) {
  TransformerOptions options;
  options.num_attention_heads = heads;
  options.attention_head_size = hidden / heads;
  options.hidden_size = hidden;
  options.intermediate_size = 4 * hidden;
  options.attention_dropout_prob = 0;
  options.hidden_dropout_prob = 0;
  options.activation = "gelu_tanh";
  options.causal_mask_size = 64;
  options.pre_layernorm = true;
  options.post_layernorm = false;
  return options;
}

/// A layer between activations on the mesh.
inline DistributedTransformerLayer layer_on_mesh(const TransformerOptions& options) {
  return DistributedTransformerLayer(options, Role::kPart);
}

/// A layer divided in one dimension over `group`, whose ranks all bring the same samples, as
/// Megatron's.
inline DistributedTransformerLayer layer_in_one_dimension(
    comm::ProcessGroup& group,
    const TransformerOptions& options) {
  TensorParallel context;
  context.group = &group;
  context.prescaled_batch = true;
  const TensorParallelScope scope(context);
  return DistributedTransformerLayer(options);
}

/// Makes a module on the mesh.
template <typename Make>
auto make_on(const MeshPtr& mesh, const Make& make) {
  TensorParallel context;
  context.group = &mesh->group();
  context.distribution = Distribution::kTwoD;
  context.mesh = mesh;
  const TensorParallelScope scope(context);
  return make();
}

} // namespace tessera::nn::summa::cases
