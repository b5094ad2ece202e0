#pragma once

#include <string>
#include <string_view>

#include <torch/nn/module.h>

#include "tessera/autograd/dispatch_mode.h"

/// Parameters and buffers that another pipeline rank owns. Their handles stay in the script's
/// hands: shape, dtype and an optimizer's list go on working, but there are no numbers, and an
/// operator that asks for them must not find something else.
namespace tessera::nn {

struct RemoteTensor {
  std::string name; // "layers.0.weight"
  int rank = 0; // global, that owns it
  int here = 0; // global, of this process
  const torch::nn::Module* module = nullptr; // that it was registered in first
  bool buffer = false;
  bool transposed = false; // a handle of the matrix's transpose
};

/// Frees the memory of a parameter or buffer. The handle keeps its shape; every operator on it is
/// looked at from now on: a layer's operator is run on the rank that owns the tensor when the
/// thread's interceptor can do that (Interceptor::call_operator), everything else is a UserError
/// that names operator, tensor, rank and what to write. A delayed tensor (meta) keeps its device.
void make_remote(const at::Tensor& tensor, RemoteTensor description);

/// A handle of the transpose of a remote matrix: what `weight.t()` is.
at::Tensor transpose_remote(const at::Tensor& matrix);

/// nullptr for a tensor that has its numbers.
const RemoteTensor* remote_tensor(const at::Tensor& tensor);

/// Whether some parameter or buffer of the module, or of one inside it, is remote.
bool has_remote_tensors(const torch::nn::Module& module);

/// Throws: UserError when the module has remote tensors; `asked` is what the script called,
/// `instead` what to write.
void refuse_remote(
    const torch::nn::Module& module,
    std::string_view asked,
    std::string_view instead);

} // namespace tessera::nn
