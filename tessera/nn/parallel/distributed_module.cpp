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
  distributed_[name] = std::move(description);
  return register_parameter(name, std::move(local));
}

} // namespace tessera::nn
