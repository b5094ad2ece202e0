#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

/// Gradients of 16-bit parameters that are added up in f32.
namespace tessera {

/// While one lives, the gradients of these 16-bit parameters are f32 tensors. What a backward gives
/// is a 16-bit number as ever; the first one becomes f32 as it is, and those that follow are added
/// to it in f32, whether the engine adds them, a GradientOrder, or a product in place. Parameters
/// of other types are left alone, and a parameter that nothing reaches has no gradient.
///
/// libtorch's C++ interface does not tie the type of a gradient to its parameter's, and its
/// AccumulateGrad adds in place, in the type of the sum.
///
/// Made before everything else that listens to additions of these parameters (AdditionHook), since
/// those look at the gradient. A 16-bit gradient that a script sets itself becomes f32 with the
/// next `find_trainable` or the next addition.
/// Threads: step thread only, but for additions to gradients. Not collective.
class F32Gradients {
 public:
  explicit F32Gradients(std::vector<at::Tensor> parameters);
  ~F32Gradients();
  F32Gradients(const F32Gradients&) = delete;
  F32Gradients& operator=(const F32Gradients&) = delete;

  /// Takes parameters that need gradients since the last call, and gradients that are 16 bits.
  void find_trainable();

 private:
  struct Parameter {
    at::Tensor tensor;
    std::shared_ptr<torch::autograd::Node> accumulator; // with our hook, once it needed gradients
    std::uintptr_t hook = 0;
  };
  std::vector<Parameter> parameters_;
};

/// Returns whether an F32Gradients has the parameter, given the node that adds to its gradient.
bool adds_in_f32(const torch::autograd::Node& accumulator);

/// Makes the parameter's gradient f32 where it is 16 bits; sparse ones too, and with history where
/// a backward records it. Others, and what stands for a gradient and has no memory, stay.
void widen_gradient(const at::Tensor& parameter);

/// Of the sum of the parameter's gradients in f32: its options, with f32 in the place of 16 bits.
at::TensorOptions f32_sum_options(const at::Tensor& parameter);

} // namespace tessera
