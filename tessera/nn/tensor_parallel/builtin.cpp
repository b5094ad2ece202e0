#include "tessera/nn/tensor_parallel/builtin.h"

#include "tessera/nn/tensor_parallel/registry.h"

namespace tessera::nn {

void register_builtin_tp_rules() {}

} // namespace tessera::nn
