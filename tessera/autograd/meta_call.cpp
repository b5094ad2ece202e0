#include "tessera/autograd/meta_call.h"

#include <mutex>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

namespace tessera {

namespace {

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool must_read_numbers(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::data_dependent_output)) {
    return true;
  }
  // With a number of classes one_hot has a fixed shape, which the comparison of
  // two runs shows.
  if (op.hasTag(at::Tag::dynamic_output_shape)) {
    return op.schema().name() != "aten::one_hot";
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
bool needs_meta_tensor(const at::Tensor& tensor) {
  return !tensor.is_meta() && !(tensor.dim() == 0 && tensor.is_cpu());
}

at::Tensor meta_tensor_like(const at::Tensor& tensor) {
  return at::empty_strided(
      tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta).pinned_memory({}));
}

// Keeps the random state: no shape may depend on it, and no call may change it.
class KeepCpuRandomState {
 public:
  KeepCpuRandomState() : state_(generator_.get_state()) {}
  ~KeepCpuRandomState() {
    generator_.set_state(state_);
  }
  KeepCpuRandomState(const KeepCpuRandomState&) = delete;
  KeepCpuRandomState& operator=(const KeepCpuRandomState&) = delete;

 private:
  at::Generator generator_ = at::globalContext().defaultGenerator(at::Device(at::kCPU));
  at::Tensor state_;
};

// Runs `call` on the CPU with every element of every tensor `value`.
torch::jit::Stack
call_on_constants(const c10::OperatorHandle& op, const torch::jit::Stack& call, int value) {
  const auto& arguments = op.schema().arguments();
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < call.size(); ++i) {
    if (is_device_argument(arguments[i])) {
      stack.emplace_back(at::Device(at::kCPU));
      continue;
    }
    const bool written = is_written(arguments[i]);
    stack.push_back(map_operator_tensors(call[i], [&](const at::Tensor& tensor) {
      if (!tensor.is_meta()) {
        return tensor;
      }
      const auto options = tensor.options().device(at::kCPU);
      return written ? at::full(tensor.sizes(), value, options)
                     : at::full({}, value, options).expand(tensor.sizes());
    }));
  }
  const KeepCpuRandomState keep;
  call_plain(op, &stack);
  return stack;
}

std::vector<std::vector<std::int64_t>> shapes_of(const torch::jit::Stack& results) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const c10::IValue& result : results) {
    for_each_operator_tensor(
        result, [&](const at::Tensor& tensor) { shapes.push_back(tensor.sizes().vec()); });
  }
  return shapes;
}

bool takes_integers(const torch::jit::Stack& call) {
  bool found = false;
  for (const c10::IValue& argument : call) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      found = found || (tensor.is_meta() && at::isIntegralType(tensor.scalar_type(), true));
    });
  }
  return found;
}

// Returns what the shapes of results depend on, as text: operator, shapes, types,
// numbers.
std::string call_text(const c10::OperatorHandle& op, const torch::jit::Stack& call) {
  std::ostringstream text;
  text << operator_name(op);
  for (const c10::IValue& argument : call) {
    text << ';';
    bool tensors = false;
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      tensors = true;
      text << tensor.sizes() << tensor.strides() << tensor.scalar_type() << tensor.device();
    });
    if (!tensors && !argument.isGenerator()) {
      text << argument;
    }
  }
  return text.str();
}

torch::jit::Stack run_for_shapes(const c10::OperatorHandle& op, const torch::jit::Stack& call) {
  const at::NoGradGuard no_grad;
  torch::jit::Stack results = call_on_constants(op, call, 0);
  if (takes_integers(call)) {
    bool same = true;
    try {
      same = shapes_of(call_on_constants(op, call, 1)) == shapes_of(results);
    } catch (const c10::Error&) {
      // With one row every index is 0, so the comparison would show nothing.
    }
    if (!same) {
      throw ReadsNumbers(operator_name(op));
    }
  }
  for (c10::IValue& result : results) {
    result = map_operator_tensors(
        result, [](const at::Tensor& tensor) { return meta_tensor_like(tensor); });
  }
  return results;
}

// The layers of a model repeat the same calls, so each is run once.
torch::jit::Stack results_without_kernel(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& call) {
  const auto& arguments = op.schema().arguments();
  if (op.schema().returns().size() == 1 && !arguments.empty() && is_written(arguments[0]) &&
      op.schema().name().back() == '_') {
    return {call[0]};
  }
  static std::mutex mutex;
  static auto* known = new std::unordered_map<std::string, torch::jit::Stack>;
  const std::string text = call_text(op, call);
  const std::lock_guard lock(mutex);
  auto entry = known->find(text);
  if (entry == known->end()) {
    entry = known->emplace(text, run_for_shapes(op, call)).first;
  }
  torch::jit::Stack results;
  for (const c10::IValue& result : entry->second) {
    results.push_back(map_operator_tensors(
        result, [](const at::Tensor& tensor) { return meta_tensor_like(tensor); }));
  }
  return results;
}

} // namespace

ReadsNumbers::ReadsNumbers(const std::string& op)
    : Error(str(op, " reads the numbers of a tensor that has only a shape")) {}

std::string operator_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool is_device_argument(const c10::Argument& argument) {
  const c10::Type* type = argument.type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    type = optional->getElementType().get();
  }
  return type->kind() == c10::TypeKind::DeviceObjType;
}

bool takes_meta_tensor(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool found = false;
  for (const c10::IValue& argument : arguments_of(op, stack)) {
    for_each_operator_tensor(
        argument, [&](const at::Tensor& tensor) { found = found || tensor.is_meta(); });
  }
  return found;
}

void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack->size() - arguments.size();
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced; // meta tensor, original
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (is_device_argument(arguments[i])) {
      value = at::Device(at::kMeta);
      continue;
    }
    value = map_operator_tensors(value, [&](const at::Tensor& tensor) {
      if (!needs_meta_tensor(tensor)) {
        return tensor;
      }
      replaced.emplace_back(meta_tensor_like(tensor), tensor);
      return replaced.back().first;
    });
  }
  const torch::jit::Stack call(stack->begin() + first, stack->end());
  try {
    call_plain(op, stack);
  } catch (const c10::Error&) {
    stack->resize(first);
    if (must_read_numbers(op)) {
      throw ReadsNumbers(operator_name(op));
    }
    for (c10::IValue& result : results_without_kernel(op, call)) {
      stack->push_back(std::move(result));
    }
  }
  for (std::size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = map_operator_tensors((*stack)[i], [&](const at::Tensor& tensor) {
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
