#include "tessera/nn/module/operator_call.h"

#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/operator_layer.h"
#include "tessera/nn/module/remote_tensor.h"
#include "tessera/tensor/value.h"

namespace tessera::nn {

namespace {

// An argument that cannot be packed itself travels as a tuple that begins with one of these
// words.
constexpr const char* kRemote = "tensor of the model";
constexpr const char* kTransposed = "transposed tensor of the model";
constexpr const char* kList = "list";
constexpr const char* kPlain = "value";

c10::IValue tagged(const char* tag, c10::IValue value) {
  return tessera::detail::make_tuple_value({c10::IValue(tag), std::move(value)});
}

c10::IValue encode(const c10::IValue& value) {
  if (value.isTensor()) {
    if (const RemoteTensor* remote = remote_tensor(value.toTensor())) {
      return tagged(remote->transposed ? kTransposed : kRemote, remote->name);
    }
    return tagged(kPlain, tessera::pack(value.toTensor()));
  }
  if (value.isList()) {
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : value.toListRef()) {
      elements.push_back(encode(element));
    }
    return tagged(kList, tessera::detail::make_tuple_value(std::move(elements)));
  }
  return tagged(kPlain, value);
}

// An undefined tensor travels as None; only the type says which of the two was meant.
c10::IValue of_type(const c10::IValue& value, const c10::TypePtr& type) {
  return value.isNone() && type->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor())
                                                                     : value;
}

c10::IValue decode(
    const c10::IValue& value,
    const c10::TypePtr& type,
    Interceptor& interceptor,
    const torch::nn::Module& module) {
  const auto parts = tessera::detail::copy_elements(value);
  const std::string& tag = parts.at(0).toStringRef();
  if (tag == kRemote) {
    return interceptor.tensor_named(module, parts.at(1).toStringRef());
  }
  if (tag == kTransposed) {
    return interceptor.tensor_named(module, parts.at(1).toStringRef()).t();
  }
  if (tag == kPlain) {
    return of_type(parts.at(1), type);
  }
  c10::TypePtr list_type = type;
  if (const auto optional = type->cast<c10::OptionalType>()) {
    list_type = optional->getElementType();
  }
  const c10::TypePtr element_type = list_type->expectRef<c10::ListType>().getElementType();
  c10::impl::GenericList list(
      element_type->kind() == c10::TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get())
                                                        : element_type);
  for (const c10::IValue& element : tessera::detail::copy_elements(parts.at(1))) {
    list.push_back(decode(element, element_type, interceptor, module));
  }
  return list;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Returns the position of the argument that a result aliases, for operators that return what they
// changed; else -1.
int aliased_argument(const c10::FunctionSchema& schema, std::size_t result) {
  if (!is_written(schema.returns()[result])) {
    return -1;
  }
  const auto& sets = schema.returns()[result].alias_info()->beforeSets();
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* given = schema.arguments()[i].alias_info();
    if (given != nullptr && given->beforeSets() == sets) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// Runs on the rank that owns `module`, in place of its forward.
c10::IValue invoke(torch::nn::Module& module, const c10::IValue& args, int, int) {
  Interceptor* interceptor = current_interceptor();
  TESSERA_CHECK(interceptor != nullptr, "an operator call outside a step");
  const auto parts = tessera::detail::copy_elements(args);
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(
      parts.at(0).toStringRef().c_str(), parts.at(1).toStringRef().c_str());
  const auto& declared = op.schema().arguments();
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < declared.size(); ++i) {
    stack.push_back(decode(parts.at(2 + i), declared[i].type(), *interceptor, module));
  }
  op.callBoxed(&stack);
  std::vector<c10::IValue> results;
  for (std::size_t i = 0; i < stack.size(); ++i) {
    const bool stays = aliased_argument(op.schema(), i) >= 0;
    results.push_back(stays ? c10::IValue() : encode(stack[i]));
  }
  return tessera::detail::make_tuple_value(std::move(results));
}

const CallKey& operator_key() {
  static const CallKey key = register_invoker("an operator of a layer", &invoke);
  return key;
}
// The call must be registered before the first request arrives.
[[maybe_unused]] const CallKey& registered = operator_key();

Held held_by(const at::Tensor& tensor) {
  const RemoteTensor* remote = remote_tensor(tensor);
  if (remote == nullptr) {
    return Held::kNot;
  }
  if (remote->module == nullptr || !is_operator_layer(*remote->module)) {
    return Held::kElsewhere;
  }
  return remote->buffer ? Held::kBuffer : Held::kParameter;
}

} // namespace

bool is_layer_operator(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack,
    const std::function<Held(const at::Tensor&)>& held) {
  bool parameters = false;
  bool elsewhere = false;
  bool computed = false;
  for (const c10::IValue& argument : arguments_of(op, stack)) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      const Held what = held(tensor);
      parameters = parameters || what == Held::kParameter;
      elsewhere = elsewhere || what == Held::kElsewhere;
      computed = computed || what == Held::kNot;
    });
  }
  return !elsewhere && (computed || !parameters);
}

bool transposes_parameter(const c10::OperatorHandle& op) {
  return op.schema().name() == "aten::t";
}

bool reads_layer(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool layer = true;
  for (const c10::IValue& argument : arguments_of(op, stack)) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      layer = layer && held_by(tensor) != Held::kElsewhere;
    });
  }
  return layer;
}

namespace {

// The module that the remote tensors of a call go by; nullptr when several ranks own them.
torch::nn::Module* module_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const RemoteTensor* first = nullptr;
  bool one_rank = true;
  for (const c10::IValue& argument : arguments_of(op, stack)) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      if (const RemoteTensor* remote = remote_tensor(tensor)) {
        first = first == nullptr ? remote : first;
        one_rank = one_rank && remote->rank == first->rank;
      }
    });
  }
  TESSERA_CHECK(first != nullptr);
  return one_rank ? const_cast<torch::nn::Module*>(first->module) : nullptr;
}

bool changes_tensor_of_this_rank(
    const c10::OperatorHandle& op,
    at::ArrayRef<c10::IValue> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    bool changes = false;
    if (is_written(op.schema().arguments()[i])) {
      for_each_operator_tensor(arguments[i], [&](const at::Tensor& tensor) {
        changes = changes || remote_tensor(tensor) == nullptr;
      });
    }
    if (changes) {
      return true;
    }
  }
  return false;
}

void run_at_owner(
    Interceptor& interceptor,
    torch::nn::Module& module,
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  std::vector<c10::IValue> packed{schema.name(), schema.overload_name()};
  for (const c10::IValue& argument : arguments_of(op, *stack)) {
    packed.push_back(encode(argument));
  }
  const auto results = tessera::detail::copy_elements(interceptor.call(
      module, operator_key(), tessera::detail::make_tuple_value(std::move(packed)), -1, -1));
  const std::size_t begin = stack->size() - schema.arguments().size();
  std::vector<c10::IValue> given;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const int aliased = aliased_argument(schema, i);
    given.push_back(
        aliased >= 0 ? (*stack)[begin + aliased]
                     : decode(results[i], schema.returns()[i].type(), interceptor, module));
  }
  stack->resize(begin);
  for (c10::IValue& value : given) {
    stack->push_back(std::move(value));
  }
}

at::Tensor fetch(Interceptor& interceptor, torch::nn::Module& module, const at::Tensor& tensor) {
  static const c10::OperatorHandle alias =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::alias", "");
  torch::jit::Stack stack{tensor};
  run_at_owner(interceptor, module, alias, &stack);
  return stack.back().toTensor();
}

} // namespace

bool run_where_parameters_are(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Interceptor* interceptor = current_interceptor();
  if (interceptor == nullptr || !is_layer_operator(op, *stack, held_by)) {
    return false;
  }
  torch::nn::Module* module = module_of(op, *stack);
  if (module == nullptr || !interceptor->wants(*module)) {
    return false;
  }
  if (!changes_tensor_of_this_rank(op, arguments_of(op, *stack))) {
    run_at_owner(*interceptor, *module, op, stack);
    return true;
  }
  for (std::size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
    (*stack)[i] = map_operator_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      return remote_tensor(tensor) == nullptr ? tensor : fetch(*interceptor, *module, tensor);
    });
  }
  call_seen(op, stack);
  return true;
}

} // namespace tessera::nn
