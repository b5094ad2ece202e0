#pragma once

#include "tessera/nn/module/remote_tensor.h"

namespace tessera::nn {

/// Frees the memory of a parameter or buffer. The handle keeps its shape; every operator on it is
/// looked at from now on: a layer's operator is run on the rank that owns the tensor when the
/// thread's interceptor can do that (operator_call.h), everything else is a UserError that names
/// operator, tensor, rank and what to write. A delayed tensor (meta) keeps its device.
void make_remote(const at::Tensor& tensor, RemoteTensor description);

} // namespace tessera::nn
