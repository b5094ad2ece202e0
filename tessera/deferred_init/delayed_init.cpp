#include "tessera/deferred_init/delayed_init.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"
#include "tessera/deferred_init/operation_record.h"
#include "tessera/tensor/dtype.h"

namespace tessera::tracer {

namespace {

thread_local bool t_delaying = false;
std::atomic<std::uint64_t> next_order{1};
std::atomic<std::uint64_t> next_storage{1};

// Constants up to this size are copied, so that the program may change them afterwards.
constexpr std::int64_t kCopiedConstantBytes = 1 << 20;

// Operators that overwrite their whole first argument and read nothing of it.
constexpr std::array<std::string_view, 11> kOverwriting{
    "aten::normal_",
    "aten::uniform_",
    "aten::zero_",
    "aten::fill_",
    "aten::copy_",
    "aten::exponential_",
    "aten::log_normal_",
    "aten::cauchy_",
    "aten::geometric_",
    "aten::random_",
    "aten::bernoulli_"};

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool overwrites(const c10::OperatorHandle& op, const at::Tensor& first) {
  return std::find(kOverwriting.begin(), kOverwriting.end(), op.schema().name()) !=
             kOverwriting.end() &&
         static_cast<std::size_t>(bytes_of(first)) == first.storage().nbytes() &&
         first.is_non_overlapping_and_dense();
}

// Returns whether a call without tensor arguments may make its result on any device: it
// names none, or the meta device, as the options of a delayed tensor do.
bool makes_tensor_anywhere(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  bool anywhere = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    bool tensors = false;
    for_each_operator_tensor(arguments[i], [&](const at::Tensor&) { tensors = true; });
    if (tensors) {
      return false;
    }
    if (is_device_argument(op.schema().arguments()[i])) {
      anywhere = arguments[i].isNone() || arguments[i].toDevice().is_meta();
    }
  }
  return anywhere;
}

std::uint64_t draw_seed(at::Generator generator) {
  if (generator.device().type() != at::kCPU) {
    throw ConfigError(
        "delay_param_initialization: a generator of a device other than the "
        "CPU was given to an operator on a delayed tensor; give a CPU "
        "generator or none");
  }
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

at::Tensor keep_constant(Operation& operation, const at::Tensor& tensor) {
  if (bytes_of(tensor) > kCopiedConstantBytes && !tensor.is_inference()) {
    operation.constants.push_back({tensor.detach(), static_cast<std::int64_t>(tensor._version())});
    return operation.constants.back().tensor;
  }
  at::Tensor copy = tensor.detach().clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

class DelayingMode : public TensorDispatchMode {
 public:
  bool owns(const at::Tensor& tensor) const override {
    return state_of(tensor) != nullptr;
  }
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    const auto arguments = arguments_of(op, *stack);
    bool delayed = false;
    for (const c10::IValue& argument : arguments) {
      for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
        delayed = delayed || state_of(tensor) != nullptr;
      });
    }
    if (delayed || (t_delaying && makes_tensor_anywhere(op, arguments))) {
      record(op, stack);
    } else {
      call_plain(op, stack);
    }
  }

 private:
  static void record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto operation = std::make_shared<Operation>(op);
    const auto written = take_arguments(*operation, arguments_of(op, *stack));
    const std::size_t first = stack->size() - op.schema().arguments().size();
    try {
      call_on_meta(op, stack);
    } catch (const ReadsNumbers& error) {
      throw ConfigError(
          str("delay_param_initialization: ",
              error.what(),
              "; compute it from other tensors, or build this module outside "
              "the scope, or materialize it before"));
    }
    take_results(operation, at::ArrayRef<c10::IValue>(*stack).slice(first));
    if (operation->results.empty() && written.empty()) {
      return; // the operator made a view or asked for the shape; nothing is left to execute
    }
    operation->order = next_order++;
    for (const auto& state : written) {
      state->last = operation;
    }
  }

  // Returns the states of the storages that the operator writes.
  static std::vector<std::shared_ptr<StorageState>> take_arguments(
      Operation& operation,
      at::ArrayRef<c10::IValue> arguments) {
    const auto& schema = operation.op.schema().arguments();
    std::vector<std::shared_ptr<StorageState>> written;
    at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCPU));
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].isGenerator()) {
        generator = arguments[i].toGenerator();
        operation.arguments.emplace_back();
        continue;
      }
      operation.arguments.push_back(
          map_operator_tensors(arguments[i], [&](const at::Tensor& tensor) {
            const auto state = state_of(tensor);
            if (state == nullptr) {
              check_constant(operation.op, schema[i], tensor);
              return keep_constant(operation, tensor);
            }
            check_not_materialized(operation.op, *state);
            const bool fresh = i == 0 && overwrites(operation.op, tensor);
            operation.inputs.push_back(
                {state->id, Geometry(tensor), fresh ? state->first : state->last});
            if (is_written(schema[i])) {
              written.push_back(state);
            }
            return at::empty({0}, tensor.options());
          }));
    }
    operation.seed = draw_seed(generator);
    return written;
  }

  static void take_results(
      const std::shared_ptr<Operation>& operation,
      at::ArrayRef<c10::IValue> results) {
    std::size_t position = 0;
    for (const c10::IValue& result : results) {
      for_each_operator_tensor(result, [&](const at::Tensor& tensor) {
        const std::size_t here = position++;
        if (!tensor.is_meta()) {
          return;
        }
        attract_mode(tensor);
        if (state_of(tensor) != nullptr) {
          return; // an argument, or a view of one
        }
        auto state = std::make_shared<StorageState>();
        state->id = next_storage++;
        state->first = operation;
        state->last = operation;
        operation->results.push_back({state->id, Geometry(tensor), here});
        attach_state(tensor, std::move(state));
      });
    }
  }

  static void check_constant(
      const c10::OperatorHandle& op,
      const c10::Argument& argument,
      const at::Tensor& tensor) {
    if (tensor.is_meta()) {
      throw ConfigError(
          str("delay_param_initialization: ",
              operator_name(op),
              " mixes a delayed tensor with a meta tensor that was made as "
              "such and will never have values"));
    }
    if (is_written(argument)) {
      throw ConfigError(
          str("delay_param_initialization: ",
              operator_name(op),
              " writes values of a delayed tensor, which has none yet, into a "
              "tensor that has memory; make that tensor inside the scope "
              "without naming a device, or materialize first"));
    }
  }

  static void check_not_materialized(const c10::OperatorHandle& op, const StorageState& state) {
    if (state.bytes.defined()) {
      throw ConfigError(
          str("delay_param_initialization: ",
              operator_name(op),
              " uses a view that was taken before its tensor was "
              "materialized; give the view to materialize() too, or take it "
              "anew"));
    }
  }
};

DelayingMode& delaying_mode() {
  static DelayingMode* mode = [] {
    auto* made = new DelayingMode;
    add_tensor_dispatch_mode(made);
    return made;
  }();
  return *mode;
}

// Updates the gradient accumulator of a materialized tensor, which still describes the
// gradient of a meta tensor. It is kept because hooks are attached to it.
void tell_accumulator(const at::Tensor& tensor) {
  if (!tensor.is_leaf() || !tensor.requires_grad()) {
    return;
  }
  if (const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor)) {
    node->clear_input_metadata();
    node->add_input_metadata(tensor);
  }
}

void materialize_one(const at::Tensor& tensor, at::Device device) {
  const auto state = state_of(tensor);
  if (state == nullptr) {
    return;
  }
  if (!state->bytes.defined()) {
    state->bytes = replay(*state, device);
  }
  give_memory(tensor, view_storage(state->bytes, Geometry(tensor)));
}

// Restores the state of the device's default generator at the end of a scope.
class KeepRandomState {
 public:
  explicit KeepRandomState(at::Device device)
      : generator_(at::globalContext().defaultGenerator(device)) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepRandomState() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  const auto buffers = module.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return tensors;
}

} // namespace

DelayedInitScope::DelayedInitScope(bool enabled) : previous_(t_delaying) {
  scope_ = std::make_unique<DispatchScope>(enabled ? &delaying_mode() : nullptr);
  t_delaying = enabled;
}

DelayedInitScope::~DelayedInitScope() {
  t_delaying = previous_;
}

bool is_delayed(const at::Tensor& tensor) {
  return tensor.defined() && state_of(tensor) != nullptr;
}

bool has_delayed(const torch::nn::Module& module) {
  const auto tensors = tensors_of(module);
  return std::any_of(tensors.begin(), tensors.end(), is_delayed);
}

void give_memory(const at::Tensor& tensor, const at::Tensor& values) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(values.getIntrusivePtr());
  tell_accumulator(tensor);
}

void materialize(at::TensorList tensors, at::Device device) {
  // The recorded operations make tensors, which an enclosing scope must not delay again.
  const DispatchScope plain(nullptr);
  const KeepRandomState keep(device);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      materialize_one(tensor, device);
    }
  }
}

void materialize(torch::nn::Module& module, at::Device device) {
  materialize(tensors_of(module), device);
}

} // namespace tessera::tracer
