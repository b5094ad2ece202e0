#include "tessera/nn/parallel/distributed_module.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::nn {

DistributedModule::DistributedModule() : parallel_(tensor_parallel()) {}

TensorParallel DistributedModule::parallel_now() const {
  TensorParallel now = parallel_;
  now.shapes_only = tensor_parallel().shapes_only;
  return now;
}

at::Tensor& DistributedModule::register_distributed_parameter(
    const std::string& name,
    at::Tensor local,
    DistributedParameter description) {
  if (local.sizes() != at::IntArrayRef(description.shard.local_sizes)) {
    throw ShapeError(tessera::str(
        "parameter '",
        name,
        "' of ",
        this->name(),
        " has sizes ",
        local.sizes(),
        "; its shard has ",
        at::IntArrayRef(description.shard.local_sizes)));
  }
  const Shard& shard = description.shard;
  if (!description.scaled_batch && parallel_.size() > 1 && shard.local_sizes != shard.full_sizes) {
    throw ConfigError(tessera::str(
        "parameter '",
        name,
        "' of ",
        this->name(),
        ": this rank holds a part of it, of sizes ",
        at::IntArrayRef(shard.local_sizes),
        " out of ",
        at::IntArrayRef(shard.full_sizes),
        ", and scaled_batch is false, so the gradients of different parts would be averaged; a "
        "divided parameter meets the samples of all tensor-parallel ranks: leave scaled_batch "
        "true, or make the parameter with initialize_whole"));
  }
  distributed_[name] = std::move(description);
  return register_parameter(name, std::move(local));
}

ForwardScope::ForwardScope(const DistributedModule& module)
    : previous_(set_present_module(&module.caller_)) {}

ForwardScope::~ForwardScope() {
  set_present_module(previous_);
}

} // namespace tessera::nn
