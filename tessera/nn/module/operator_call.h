#pragma once

#include <functional>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/nn/module/interceptor.h"

/// Operators that read parameters of another rank, run on that rank: how libtorch's own layers are
/// placed although their calls cannot be intercepted. The arguments travel as those of a module
/// call do, parameters by name; results and gradients come back as a module's.
namespace tessera::nn {

/// What a tensor of an operator call is: computed (kNot), a parameter or buffer of an operator
/// layer, or one of another module (kElsewhere).
enum class Held { kNot, kParameter, kBuffer, kElsewhere };

/// Returns whether an operator belongs to a layer: `layer(tensor)` says of each argument whether it
/// is a parameter or buffer of the model, and whether its module is an operator layer. It is when
/// all such arguments belong to operator layers and another tensor is computed with, or when
/// nothing but buffers (the counter of a batch norm) is touched.
bool is_layer_operator(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack,
    const std::function<Held(const at::Tensor&)>& held);

/// `weight.t()`, of which libtorch's Linear makes its product: asks for no numbers yet.
bool transposes_parameter(const c10::OperatorHandle& op);

/// Returns whether all remote tensors among the arguments belong to operator layers.
bool reads_layer(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Runs the operator on the rank that owns the remote tensors among its arguments, and leaves its
/// results on the stack. One that changes a tensor of this rank (`output += bias`) runs here, on a
/// copy of the parameter through which gradients go back. False, and nothing is done, when it is no
/// layer's operator or this thread runs no step. Threads: as Interceptor::call.
bool run_where_parameters_are(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace tessera::nn
