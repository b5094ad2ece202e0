#pragma once

#include <string>

#include <torch/nn/module.h>

/// Parameters and buffers that another pipeline rank owns, or that belong to a module in whose
/// place a distributed one is. The script keeps their
/// handles: shape, dtype and an optimizer's list still work. There is no data, and an operator that
/// needs data must not get other data instead.
namespace tessera::nn {

struct RemoteTensor {
  std::string name; // "layers.0.weight"
  int rank = 0; // global, that owns it
  int here = 0; // global, of this process
  const torch::nn::Module* module = nullptr; // that it was registered in first
  bool buffer = false;
  bool gradient = false; // of the parameter
  bool transposed = false; // a handle of the matrix's transpose
  /// The class of the distributed module that has taken the values of the module over; "": another
  /// rank has them.
  std::string replaced_by = {};
};

/// Frees the memory of a parameter or buffer and attaches `description` to it.
/// Use make_remote (remote_guard.h), which also guards the handle.
void replace_by_handle(const at::Tensor& tensor, RemoteTensor description);

/// Gives a remote parameter that has no gradient a handle of its gradient, which refuses what asks
/// for numbers too: norms that a script computes over all gradients would be those of this rank's.
/// What changes each element by itself is left to the rank that owns it. Does nothing for buffers
/// and parameters that are not trained.
void show_remote_gradient(const at::Tensor& parameter);

/// Returns the handle of a gradient that is made from one, of the same shape.
at::Tensor another_remote_gradient(const at::Tensor& gradient);

/// Returns the handle of the transpose of a remote matrix, the result of `weight.t()`.
at::Tensor transpose_remote(const at::Tensor& matrix);

/// Returns the description of a remote tensor; nullptr for a tensor that has its data.
const RemoteTensor* remote_tensor(const at::Tensor& tensor);

/// Returns whether some parameter or buffer of the module, or of one inside it, is remote.
bool has_remote_tensors(const torch::nn::Module& module);

} // namespace tessera::nn
