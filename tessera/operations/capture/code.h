#pragma once

#include <functional>
#include <string>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

/// Arguments and results of operators in a form that can be compared and sent: tensors are the
/// numbers of values in a program.
namespace tessera::operations {

/// Throws: UserError for an argument of a type that cannot be sent (a generator, a storage).
c10::IValue encode(
    const c10::IValue& value,
    const std::function<int(const at::Tensor&)>& number_of);

/// `type` is the one that the operator's schema gives.
c10::IValue decode(
    const c10::IValue& code,
    const c10::TypePtr& type,
    const std::function<at::Tensor(int)>& tensor_of);

/// Calls visit(number) for every tensor in the code.
void for_each_number(const c10::IValue& code, const std::function<void(int)>& visit);

/// Calls visit(number, tensor) for every tensor of `value`, whose code this is.
void for_each_number(
    const c10::IValue& code,
    const c10::IValue& value,
    const std::function<void(int, const at::Tensor&)>& visit);

} // namespace tessera::operations
