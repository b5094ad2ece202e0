#pragma once

#include <torch/nn/module.h>

namespace tessera::nn::managed {

/// Lets all transformer layers on a mesh inside `root` run with managed memory:
/// autograd keeps a layer's input alone and sees the layer as one node, whose
/// backward runs the forward again; what products write lies in buffers that all
/// layers share (ManagedLayer). Gradients of parameters go where those of other
/// modules go, so optimizers, clipping, replicas and microbatches know nothing
/// of it; they equal plain autograd's but for rounding.
///
/// Not collective. Threads: before the first call of the module.
/// Cost of a step: a third of the layers' forward more; b s h / p elements a
/// layer and microbatch stay until the backward in place of about 34 b s h / p
/// and the attention's weights.
/// Throws: ConfigError that names the first layer without a managed form, or
/// when there is no layer at all.
/// Source: Xu et al. 2021, section 3.2.3.
void manage_layers(torch::nn::Module& root);

} // namespace tessera::nn::managed
