#pragma once

#include <cstddef>
#include <memory>

#include <torch/nn/module.h>

/// How large the object of a module is, from whoever knew its class: a holder that made it, or a
/// DistributedModel that was given it. libtorch keeps modules by their base class alone.
namespace tessera::nn {

/// `bytes`: sizeof the module's class or of a class that it derives from. The first size that was
/// said counts. It is forgotten with the module. Not collective. Threads: any.
void remember_object_size(const std::shared_ptr<torch::nn::Module>& module, std::size_t bytes);

/// 0 where nobody said it. Not collective. Threads: any.
std::size_t object_size(const torch::nn::Module& module);

} // namespace tessera::nn
