#include "tessera/half/convert.h"

#include <ATen/ATen.h>

namespace tessera::half {

void convert(torch::nn::Module& module, at::ScalarType type) {
  const auto convert_one = [type](at::Tensor tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == type) {
      return;
    }
    tensor.mutable_grad() = at::Tensor();
    tensor.set_data(tensor.detach().to(type));
  };
  // Module::to would also convert integers, the counts of batch norms among them.
  for (const at::Tensor& parameter : module.parameters()) {
    convert_one(parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    convert_one(buffer);
  }
}

} // namespace tessera::half
