#include "tessera/operations/capture/capture.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"
#include "tessera/nn/module/operation_scopes.h"
#include "tessera/nn/module/remote_tensor.h"
#include "tessera/operations/capture/code.h"
#include "tessera/operations/capture/shape_tensor.h"
#include "tessera/tensor/map_tensors.h"
#include "tessera/tensor/random_state.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::operations {

namespace {

using Source = ProgramValue::Source;

thread_local Capture* t_capture = nullptr;

// Asked before all others about shape tensors, and in a forward that is seen about parameters of
// other ranks, which are not read there.
class ShapeTensorMode : public TensorDispatchMode {
 public:
  bool owns(const at::Tensor& tensor) const override {
    return shape_only(tensor) || (t_capture != nullptr && nn::remote_tensor(tensor) != nullptr);
  }
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    if (t_capture != nullptr) {
      t_capture->call(op, stack);
      return;
    }
    throw UserError(str(
        operator_name(op),
        " is called on a tensor of a forward whose operators were recorded, which has a shape and "
        "no numbers. The model's forward kept it in a member or gave it to code outside; return it "
        "from the forward",
        kOtherMode));
  }
};

// Before modes that are added with the first partition.
[[maybe_unused]] const bool added = [] {
  add_guard_dispatch_mode(new ShapeTensorMode);
  return true;
}();

class Current {
 public:
  explicit Current(Capture* capture) : previous_(std::exchange(t_capture, capture)) {}
  ~Current() {
    t_capture = previous_;
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  Capture* previous_;
};

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool may_alias(const c10::Argument& argument) {
  return argument.alias_info() != nullptr;
}

// Of these the run on shapes shows whether they copy.
bool may_copy(const std::string& op) {
  static const std::set<std::string> names{
      "aten::to", "aten::contiguous", "aten::reshape", "aten::reshape_as", "aten::flatten"};
  return names.contains(op);
}

bool is_random(const c10::OperatorHandle& op) {
  return draws_random_numbers(op.schema().name(), op.schema().overload_name());
}

const void* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

std::string parent_of(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

} // namespace

VariableTable variables_of(torch::nn::Module& root) {
  VariableTable table;
  std::vector<std::vector<std::string>> modules; // by variable, all that hold it
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool buffer) {
    if (!tensor.defined()) {
      return;
    }
    const auto [entry, first] =
        table.index.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(table.list.size()));
    if (first) {
      table.list.push_back({name, parent_of(name), tensor, buffer});
      modules.emplace_back();
    }
    modules[entry->second].push_back(parent_of(name));
  };
  for (const auto& item : root.named_parameters()) {
    add(item.key(), item.value(), false);
  }
  for (const auto& item : root.named_buffers()) {
    add(item.key(), item.value(), true);
  }
  for (const auto& item : root.named_modules()) {
    table.modules.emplace(item.value().get(), item.key());
  }
  // Modules that share a variable go by the name of one of them.
  std::unordered_map<std::string, std::string> name_of;
  const auto find = [&](std::string module) {
    for (auto next = name_of.find(module); next != name_of.end(); next = name_of.find(module)) {
      module = next->second;
    }
    return module;
  };
  for (const auto& holders : modules) {
    for (const std::string& holder : holders) {
      const std::string a = find(holders.front());
      const std::string b = find(holder);
      if (a != b) {
        name_of[b] = a;
      }
    }
  }
  for (ModelVariable& variable : table.list) {
    variable.module = find(variable.module);
  }
  return table;
}

/// Knows which module runs, for the operations of a layer and for messages.
class Capture::Modules : public nn::Interceptor {
 public:
  explicit Modules(Capture& capture) : capture_(capture) {}

  bool wants(const torch::nn::Module& module) override {
    refuse_recomputed(module, name_of(module));
    return capture_.recording();
  }
  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override {
    capture_.path_.push_back(name_of(module));
    capture_.leaf_.push_back(module.children().empty());
    c10::IValue result = nn::find_invoker(key.hash)(module, args, first, last);
    capture_.path_.pop_back();
    capture_.leaf_.pop_back();
    return result;
  }

 private:
  std::string name_of(const torch::nn::Module& module) const {
    const auto entry = capture_.variables_.modules.find(&module);
    return entry == capture_.variables_.modules.end() ? std::string() : entry->second;
  }

  Capture& capture_;
};

Capture::Capture(const VariableTable& variables, const Program* program)
    : variables_(variables), expected_(program) {}

std::string Capture::here(const std::string& op) const {
  return str(
      "operation ",
      calls_,
      " of the model's forward, ",
      op,
      path_.empty() || path_.back().empty() ? std::string() : str(" (in '", path_.back(), "')"));
}

void Capture::refuse(const std::string& op, const std::string& why) const {
  throw UserError(str("partition_mode \"operations\": ", here(op), ", ", why, kOtherMode));
}

void Capture::run(
    const c10::IValue& arguments,
    const std::function<c10::IValue(const c10::IValue&)>& forward) {
  if (cpu_autocast::enabled()) {
    throw UserError(
        str("partition_mode \"operations\": the model is called under autocast, whose casts are "
            "not among the recorded operators",
            kOtherMode));
  }
  grad_mode_ = at::GradMode::is_enabled();
  const c10::IValue shape_tensors = map_tensors(arguments, [&](const at::Tensor& tensor) {
    if (!tensor.defined() || numbers_.contains(tensor.unsafeGetTensorImpl())) {
      return tensor.defined() ? tensors_.at(numbers_.at(tensor.unsafeGetTensorImpl())) : tensor;
    }
    ProgramValue value;
    value.source = Source::kInput;
    at::Tensor made = make_shape_tensor(
        tensor.sizes(), tensor.strides(), tensor.scalar_type(), tensor.device(), grad_mode_);
    const int number = add(made, std::move(value), tensor);
    numbers_.emplace(tensor.unsafeGetTensorImpl(), number);
    return made;
  });
  Modules modules(*this);
  {
    const nn::RecordedForward scopes;
    const KeepRandomState random; // shapes draw nothing
    const nn::InterceptorScope intercept(&modules);
    const Current current(this);
    const DispatchScope scope(this);
    returned_ = forward(shape_tensors);
    // A parameter that is returned as it is goes the way of all others.
    returned_ = map_tensors(returned_, [&](const at::Tensor& tensor) {
      return variables_.index.contains(tensor.unsafeGetTensorImpl()) ? at::alias(tensor) : tensor;
    });
  }
  std::vector<int> results;
  for_each_tensor(returned_, [&](const at::Tensor& tensor) {
    const auto known = numbers_.find(shape_tensor_of(tensor));
    if (known == numbers_.end() && shape_only(tensor)) {
      refuse("its result", "returns a tensor of an earlier forward, kept in a member");
    }
    if (known != numbers_.end()) {
      results.push_back(known->second);
    }
  });
  check_autograd();
  check_given();
  if (recording()) {
    recorded_.results = std::move(results);
  } else {
    check_length();
    if (results != expected_->results) {
      throw UserError(
          "partition_mode \"operations\": the model's forward returns the results of other "
          "operations than in the recorded step, whose arguments had the same shapes");
    }
  }
}

c10::IValue Capture::result(const std::function<at::Tensor(int)>& tensor_of) const {
  return map_tensors(returned_, [&](const at::Tensor& tensor) {
    const auto known = numbers_.find(shape_tensor_of(tensor));
    return known == numbers_.end() ? tensor : tensor_of(known->second);
  });
}

/// A call is compared by the numbers of its arguments, so these must stand for the same things.
void Capture::check_value(const at::Tensor& tensor, const ProgramValue& value) const {
  const std::size_t number = tensors_.size();
  const ProgramValue* known =
      number < expected_->values.size() ? &expected_->values[number] : nullptr;
  const bool given = value.source == Source::kGiven;
  if (known == nullptr || known->source != value.source || known->variable != value.variable ||
      (given &&
       (tensor.sizes() != at::IntArrayRef(known->sizes) || tensor.scalar_type() != known->dtype))) {
    throw UserError(
        str("partition_mode \"operations\": the model's forward uses another parameter or tensor "
            "than in the recorded step",
            kOtherMode));
  }
}

int Capture::add(at::Tensor tensor, ProgramValue value, at::Tensor real) {
  const int number = static_cast<int>(tensors_.size());
  if (!recording()) {
    check_value(tensor, value);
  }
  tensors_.push_back(tensor);
  versions_.push_back(
      real.defined() && !real.is_inference() ? static_cast<std::int64_t>(real._version()) : -1);
  given_.push_back(std::move(real));
  numbers_[tensor.unsafeGetTensorImpl()] = number;
  if (recording()) {
    value.sizes = tensor.sizes().vec();
    value.strides = tensor.strides().vec();
    value.dtype = tensor.scalar_type();
    value.device = tensor.device();
    value.memory = value.memory < 0 ? number : value.memory;
    recorded_.values.push_back(std::move(value));
    shapes_.push_back(at::empty_strided(
        tensor.sizes(), tensor.strides(), at::dtype(tensor.scalar_type()).device(at::kMeta)));
  }
  return number;
}

int Capture::number_of(const at::Tensor& tensor) {
  const auto known = numbers_.find(shape_tensor_of(tensor));
  if (known != numbers_.end()) {
    return known->second;
  }
  ProgramValue value;
  const auto variable = variables_.index.find(tensor.unsafeGetTensorImpl());
  if (variable != variables_.index.end()) {
    value.source = Source::kVariable;
    value.variable = variable->second;
    return add(tensor, std::move(value), {});
  }
  if (shape_only(tensor)) {
    throw UserError(str(
        "the model's forward uses a tensor of an earlier forward, kept in a member", kOtherMode));
  }
  value.source = Source::kGiven;
  return add(tensor, std::move(value), tensor);
}

bool Capture::runs_at_once(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments)
    const {
  bool tensors = false;
  bool seen = false;
  for (const c10::IValue& argument : arguments) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      tensors = true;
      seen = seen || shape_only(tensor) || variables_.index.contains(tensor.unsafeGetTensorImpl());
    });
  }
  // Libtorch fills new tensors past all operators (torch::tensor), so an empty one is real.
  return tensors ? !seen && !is_random(op) : op.schema().name().starts_with("aten::empty");
}

void Capture::call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = arguments_of(op, *stack);
  if (runs_at_once(op, arguments)) {
    call_plain(op, stack);
    return;
  }
  Call call;
  call.op = op.schema().name();
  call.overload = op.schema().overload_name();
  call.no_grad = grad_mode_ && !at::GradMode::is_enabled();
  try {
    for (const c10::IValue& argument : arguments) {
      call.arguments.push_back(
          encode(argument, [&](const at::Tensor& tensor) { return number_of(tensor); }));
    }
  } catch (const UserError& error) {
    refuse(call.op, error.what());
  }
  if (recording()) {
    record(std::move(call), op, stack);
  } else {
    check_difference(call);
    repeat(expected_->calls[calls_], op, stack);
  }
  ++calls_;
}

int Capture::add_result(const at::Tensor& like, int memory) {
  const at::Device device = tensors_.empty() ? at::Device(at::kCPU) : tensors_.front().device();
  ProgramValue value;
  value.memory = memory;
  return add(
      make_shape_tensor(like.sizes(), like.strides(), like.scalar_type(), device, grad_mode_),
      std::move(value),
      {});
}

void Capture::check_change(const Call& call, int value) const {
  for (std::size_t v = 0; v < recorded_.values.size(); ++v) {
    const ProgramValue& info = recorded_.values[v];
    if (info.memory != recorded_.values[value].memory) {
      continue;
    }
    if (info.source == Source::kInput) {
      refuse(
          call.op,
          "changes in place what an argument of the model (perhaps) lies in, which its caller on "
          "another rank would not see; write the operator that makes a new tensor");
    }
    if (info.source == Source::kGiven) {
      refuse(
          call.op,
          "changes a tensor in place that does not come from a recorded operator; make it with "
          "torch::zeros, or write the operator that makes a new tensor");
    }
    if (info.source == Source::kVariable && !variables_.list[info.variable].buffer) {
      refuse(call.op, "changes parameter '" + variables_.list[info.variable].name + "' in place");
    }
  }
}

torch::jit::Stack Capture::run_on_shapes(
    const c10::OperatorHandle& op,
    const Call& call,
    std::unordered_map<const c10::TensorImpl*, int>& value_of) {
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    stack.push_back(decode(call.arguments[i], op.schema().arguments()[i].type(), [&](int value) {
      value_of[shapes_.at(value).unsafeGetTensorImpl()] = value;
      return shapes_[value];
    }));
  }
  try {
    const at::NoGradGuard no_grad;
    call_on_meta(op, &stack);
  } catch (const ReadsNumbers& error) {
    refuse(
        call.op,
        "reads numbers of a tensor, on which the rest of the forward may depend, and operators "
        "cannot be recorded for all numbers");
  }
  return stack;
}

// What an operator changes gets a new number, under the same tensor. A variable keeps its number:
// it lives beyond the forward.
void Capture::renew(
    Call& call,
    const c10::OperatorHandle& op,
    std::unordered_map<int, int>& renewed) {
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (!is_written(op.schema().arguments()[i])) {
      continue;
    }
    for_each_number(call.arguments[i], [&](int value) {
      check_change(call, value);
      int now = value;
      if (recorded_.values[value].source != Source::kVariable) {
        const at::Tensor shape = shapes_[value];
        const at::Tensor changed = tensors_[value];
        changed.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides());
        ProgramValue after;
        after.memory = recorded_.values[value].memory;
        now = add(changed, std::move(after), {});
        shapes_[now] = shape;
      }
      renewed[value] = now;
      call.renewed.insert(call.renewed.end(), {value, now});
    });
  }
}

// The memory of the arguments that a result may share with, which then is one; -1: none. `same`:
// the value that the result is, or -1.
int Capture::shared_memory(
    const Call& call,
    const c10::OperatorHandle& op,
    std::size_t result,
    const at::Tensor& tensor,
    int same) {
  int memory = -1;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const bool declared = !may_copy(call.op) && may_alias(op.schema().arguments()[i]) &&
                          may_alias(op.schema().returns()[result]);
    for_each_number(call.arguments[i], [&](int value) {
      const void* of_value = memory_of(shapes_[value]);
      if (!declared && value != same && (of_value == nullptr || of_value != memory_of(tensor))) {
        return;
      }
      const int other = recorded_.values[value].memory;
      memory = memory < 0 ? other : memory;
      for (ProgramValue& info : recorded_.values) {
        info.memory = info.memory == other ? memory : info.memory;
      }
    });
  }
  return memory;
}

void Capture::record(Call call, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (call.op.starts_with("aten::as_strided")) {
    refuse(call.op, "reads memory by strides, which tensors of another rank do not keep");
  }
  std::unordered_map<const c10::TensorImpl*, int> value_of; // of the arguments' shapes
  const torch::jit::Stack results = run_on_shapes(op, call, value_of);
  std::unordered_map<int, int> renewed;
  renew(call, op, renewed);
  stack->resize(stack->size() - op.schema().arguments().size());
  for (std::size_t r = 0; r < results.size(); ++r) {
    const c10::IValue given = map_operator_tensors(results[r], [&](const at::Tensor& tensor) {
      const auto known = value_of.find(tensor.unsafeGetTensorImpl());
      const int same = known == value_of.end() ? -1 : known->second;
      if (renewed.contains(same)) {
        return tensors_[renewed.at(same)];
      }
      const int memory = shared_memory(call, op, r, tensor, same);
      call.copies = call.copies || (may_copy(call.op) && memory < 0);
      const int number = add_result(tensor, memory);
      shapes_[number] = same < 0 ? tensor : shapes_[same].alias(); // views share its memory
      return tensors_[number];
    });
    call.results.push_back(
        encode(given, [&](const at::Tensor& tensor) { return number_of(tensor); }));
    stack->push_back(given);
  }
  recorded_.modules.push_back(path_.empty() ? std::string() : path_.back());
  recorded_.layers.push_back(path_.empty() || !leaf_.back() ? std::string() : path_.back());
  recorded_.wishes.push_back(nn::RecordedForward::wish());
  recorded_.calls.push_back(std::move(call));
}

// Everything is as it was recorded, so nothing is run even on shapes.
void Capture::repeat(const Call& call, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto make = [&](int number) {
    const ProgramValue& info = expected_->values.at(number);
    return make_shape_tensor(info.sizes, info.strides, info.dtype, info.device, grad_mode_);
  };
  for (std::size_t i = 0; i < call.renewed.size(); i += 2) {
    if (call.renewed[i] == call.renewed[i + 1]) {
      continue; // a variable
    }
    const at::Tensor changed = tensors_.at(call.renewed[i]);
    const ProgramValue& info = expected_->values.at(call.renewed[i + 1]);
    changed.unsafeGetTensorImpl()->set_sizes_and_strides(info.sizes, info.strides);
    const int number = add(changed, {}, {});
    TESSERA_CHECK(number == call.renewed[i + 1]);
  }
  stack->resize(stack->size() - op.schema().arguments().size());
  for (std::size_t r = 0; r < call.results.size(); ++r) {
    stack->push_back(decode(call.results[r], op.schema().returns()[r].type(), [&](int number) {
      if (number == static_cast<int>(tensors_.size())) {
        add(make(number), {}, {});
      }
      return tensors_.at(number);
    }));
  }
}

} // namespace tessera::operations
