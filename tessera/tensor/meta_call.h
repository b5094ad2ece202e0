#pragma once

#include <string>

#include "tessera/base/error.h"
#include "tessera/tensor/dispatch_mode.h"

namespace tessera {

/// An operator needs the numbers of a tensor that has only a shape, or this
/// libtorch cannot tell the shape of its result. Callers add where it happened.
class NoMetaKernel : public Error {
 public:
  NoMetaKernel(std::string op, bool reads_numbers);

  const std::string& op() const {
    return op_;
  }
  /// item(), nonzero() and the like: no libtorch can do it.
  bool reads_numbers() const {
    return reads_numbers_;
  }

 private:
  std::string op_;
  bool reads_numbers_;
};

/// Whether an argument of the operator on the stack is a meta tensor.
bool takes_meta_tensor(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack);

/// Runs an operator for shapes only: tensors with data stand for their shapes,
/// a device argument becomes meta. An argument with data that the operator
/// would write stays as it is and is returned in place of its stand-in.
///
/// Throws: NoMetaKernel.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// `Device` or `Device?` in the schema.
bool is_device_argument(const c10::Argument& argument);

/// "aten::linear", "aten::add.Tensor".
std::string operator_name(const c10::OperatorHandle& op);

} // namespace tessera
