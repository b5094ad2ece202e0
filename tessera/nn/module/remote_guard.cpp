#include "tessera/nn/module/remote_guard.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"
#include "tessera/nn/module/operator_call.h"

namespace tessera::nn {

namespace {

// Operators that ask for shape and dtype only.
bool reads_no_numbers(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name.ends_with("_like") || name.starts_with("aten::new_") || name == "aten::detach" ||
         name == "aten::detach_" || name == "aten::alias" || name == "aten::requires_grad_" ||
         name == "aten::is_same_size" || name == "aten::retain_grad";
}

// Element by element, a gradient is changed, or another one is made from it (`p.mutable_grad() =
// p.grad().clamp(-1, 1)`). The script does so on the rank that owns it too, where the numbers are.
bool goes_by_elements(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  static const std::set<std::string> names = {
      "add", "sub", "mul", "div", "neg", "clamp", "clamp_min", "clamp_max", "nan_to_num", "clone"};
  static const std::set<std::string> writes = {"zero_", "fill_", "copy_", "addcmul_", "addcdiv_"};
  const std::string& qualified = op.schema().name();
  if (!qualified.starts_with("aten::")) {
    return false;
  }
  const std::string name = qualified.substr(std::string_view("aten::").size());
  const std::string plain = name.ends_with('_') ? name.substr(0, name.size() - 1) : name;
  const auto arguments = arguments_of(op, stack);
  if (!(names.contains(plain) || writes.contains(name)) || !arguments[0].isTensor()) {
    return false;
  }
  const RemoteTensor* first = remote_tensor(arguments[0].toTensor());
  return first != nullptr && first->gradient;
}

const RemoteTensor& first_remote(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const RemoteTensor* found = nullptr;
  for (const c10::IValue& argument : arguments_of(op, stack)) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      found = found != nullptr ? found : remote_tensor(tensor);
    });
  }
  TESSERA_CHECK(found != nullptr);
  return *found;
}

[[noreturn]] void refuse_replaced(const std::string& asked, const RemoteTensor& replaced) {
  throw UserError(str(
      asked,
      " asks for the numbers of ",
      replaced.buffer ? "buffer '" : "parameter '",
      replaced.name,
      "', but tensor parallelism has put a ",
      replaced.replaced_by,
      " in the place of its module, and each rank of the group has a part of the values; read and "
      "change them with model.state_dict() and load_state_dict, write penalties, norms and "
      "statistics with tessera::over_parameters, take parameters for an optimizer from "
      "model.parameters(), or leave the module undivided (tessera::set_tensor_parallelism(module, "
      "false))"));
}

class RemoteTensorMode : public TensorDispatchMode {
 public:
  bool owns(const at::Tensor& tensor) const override {
    return remote_tensor(tensor) != nullptr;
  }

  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    if (reads_no_numbers(op)) {
      call_plain(op, stack);
      return;
    }
    const RemoteTensor& first = first_remote(op, *stack);
    if (!first.replaced_by.empty()) {
      refuse_replaced(operator_name(op), first);
    }
    if (transposes_parameter(op) && reads_layer(op, *stack)) {
      stack->back() = transpose_remote(stack->back().toTensor());
      return;
    }
    if (run_where_parameters_are(op, stack)) {
      return;
    }
    if (goes_by_elements(op, *stack)) {
      const at::Tensor gradient = arguments_of(op, *stack)[0].toTensor();
      torch::jit::drop(*stack, op.schema().arguments().size());
      torch::jit::push(
          *stack, op.schema().is_mutable() ? gradient : another_remote_gradient(gradient));
      return;
    }
    const RemoteTensor& remote = first;
    if (remote.gradient) {
      throw UserError(str(
          operator_name(op),
          " asks for the numbers of the gradient of parameter '",
          remote.name,
          "', which rank ",
          remote.rank,
          " owns, so they are not on rank ",
          remote.here,
          "; what changes each gradient by itself loops over model.local_parameters(), names and "
          "tensors of this rank's; a norm of all gradients, and clipping by it, is "
          "optimizer.clip_grad_norm(max_norm) of a tessera::DistributedOptimizer, which also "
          "updates parameters in the place of an optimizer of libtorch"));
    }
    const bool in_step = current_interceptor() != nullptr;
    throw UserError(str(
        operator_name(op),
        " asks for the numbers of ",
        remote.buffer ? "buffer '" : "parameter '",
        remote.name,
        "', which rank ",
        remote.rank,
        " owns, so they are not on rank ",
        remote.here,
        in_step ? ". A parameter is read by the forward of its own module"
                : ". This is outside of a step, where modules on other ranks cannot be called: put "
                  "calls of the model into the function of a tessera::step",
        op.schema().is_mutable()
            ? "; change the values on the rank that owns them, which model.local_parameters() and "
              "local_buffers() name, or on all with model.load_state_dict"
            : "; what else needs it is written with tessera::over_parameters (penalties, norms and "
              "statistics inside a step), "
              "model.state_dict() or copy_to (copies), tessera::save_module (files)"));
  }
};

} // namespace

void make_remote(const at::Tensor& tensor, RemoteTensor description) {
  // Never destroyed: handles may outlive static objects.
  static RemoteTensorMode* const guard = [] {
    auto* made = new RemoteTensorMode;
    add_guard_dispatch_mode(made);
    return made;
  }();
  TESSERA_CHECK(guard != nullptr);
  replace_by_handle(tensor, std::move(description));
}

} // namespace tessera::nn
