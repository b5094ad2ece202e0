#pragma once

#include <string>
#include <string_view>

#include <torch/nn/module.h>

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

/// Replaces a parameter's or buffer's memory by nothing and remembers `description` in its place.
/// Use make_remote (remote_guard.h), which also guards the handle.
void replace_by_handle(const at::Tensor& tensor, RemoteTensor description);

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
