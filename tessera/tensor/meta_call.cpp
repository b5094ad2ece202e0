#include "tessera/tensor/meta_call.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "tessera/tensor/torch_compat.h"

namespace tessera {

namespace {

std::string describe_failure(const std::string& op, bool reads_numbers) {
  return reads_numbers
             ? str(op, " reads the numbers of a tensor that has only a shape")
             : str(op,
                   " has no kernel for tensors that have only a shape in "
                   "libtorch ",
                   kTorchVersion);
}

bool reads_numbers(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::data_dependent_output) ||
      op.hasTag(at::Tag::dynamic_output_shape)) {
    return true;
  }
  for (const auto& result : op.schema().returns()) {
    const auto kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) {
      return true;
    }
  }
  return false;
}

// A 0-dim CPU tensor mixes with any device and may be a wrapped number, whose
// type counts less: it stays.
bool needs_stand_in(const at::Tensor& tensor) {
  return !tensor.is_meta() && !(tensor.dim() == 0 && tensor.is_cpu());
}

at::Tensor stand_in(const at::Tensor& tensor) {
  return at::empty_strided(
      tensor.sizes(),
      tensor.strides(),
      tensor.options().device(at::kMeta).pinned_memory({}));
}

} // namespace

NoMetaKernel::NoMetaKernel(std::string op, bool reads_numbers)
    : Error(describe_failure(op, reads_numbers)),
      op_(std::move(op)),
      reads_numbers_(reads_numbers) {}

std::string operator_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name
                                    : name.name + "." + name.overload_name;
}

bool is_device_argument(const c10::Argument& argument) {
  const c10::Type* type = argument.type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    type = optional->getElementType().get();
  }
  return type->kind() == c10::TypeKind::DeviceObjType;
}

bool takes_meta_tensor(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack) {
  bool found = false;
  for (const c10::IValue& argument : arguments_of(op, stack)) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      found = found || tensor.is_meta();
    });
  }
  return found;
}

void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack->size() - arguments.size();
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced; // stand-in, original
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (is_device_argument(arguments[i])) {
      value = at::Device(at::kMeta);
      continue;
    }
    value = map_operator_tensors(value, [&](const at::Tensor& tensor) {
      if (!needs_stand_in(tensor)) {
        return tensor;
      }
      replaced.emplace_back(stand_in(tensor), tensor);
      return replaced.back().first;
    });
  }
  try {
    call_plain(op, stack);
  } catch (const c10::NotImplementedError&) {
    throw NoMetaKernel(operator_name(op), reads_numbers(op));
  } catch (const c10::Error&) {
    if (reads_numbers(op)) {
      throw NoMetaKernel(operator_name(op), true);
    }
    throw;
  }
  for (std::size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] =
        map_operator_tensors((*stack)[i], [&](const at::Tensor& tensor) {
          for (const auto& [temporary, original] : replaced) {
            if (tensor.is_same(temporary)) {
              return original;
            }
          }
          return tensor;
        });
  }
}

} // namespace tessera
