#pragma once

#include <torch/nn/module.h>

namespace tessera::nn {

/// Returns whether a module is one of libtorch's own layers (exactly, no class derived from it)
/// that uses its parameters in one operator a call: Linear, convolutions, embeddings, norms,
/// recurrent layers. Such a layer needs no holder of this library to live on another rank: the
/// operator is run there (operator_call.h), however the script called it.
bool is_operator_layer(const torch::nn::Module& module);

} // namespace tessera::nn
