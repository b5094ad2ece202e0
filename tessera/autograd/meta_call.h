#pragma once

#include <string>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/base/error.h"

namespace tessera {

/// An operator needs the numbers of a tensor that has only a shape: item(),
/// nonzero() and the like. Callers add where it happened.
class ReadsNumbers : public Error {
 public:
  explicit ReadsNumbers(const std::string& op);
};

/// Returns whether an argument of the operator on the stack is a meta tensor.
bool takes_meta_tensor(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Runs an operator for shapes only: tensors with data stand for their shapes,
/// a device argument becomes meta. An argument with data that the operator
/// would write stays as it is and is returned in place of its meta tensor.
///
/// Many operators of libtorch 1.13 (embedding, layer_norm, relu, where, conv)
/// have no meta kernel outside Python. A written argument is then its own
/// result; otherwise the operator runs once on the CPU, on zeros that take no
/// memory (one element, strides 0), and the shapes of its results count; run
/// once more on ones, they must be the same, or they depend on numbers.
///
/// Throws: ReadsNumbers; what the operator throws on wrong shapes.
/// Cost: with such operators the memory and time of one result on the CPU, once
/// for each shape.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// `Device` or `Device?` in the schema.
bool is_device_argument(const c10::Argument& argument);

/// "aten::linear", "aten::add.Tensor".
std::string operator_name(const c10::OperatorHandle& op);

} // namespace tessera
