#include "tessera/runtime/replay/placeholder.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {

using PlaceholderHolder = std::shared_ptr<Placeholder>;

void delete_placeholder(void* context) {
  delete static_cast<PlaceholderHolder*>(context);
}

Placeholder&
attach(const at::Tensor& tensor, std::vector<Slot> origins, void* data, at::Device device) {
  auto made = std::make_shared<Placeholder>();
  made->origins = std::move(origins);
  made->self = tensor.unsafeGetTensorImpl();
  Placeholder& info = *made;
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr(
      at::DataPtr(data, new PlaceholderHolder(std::move(made)), &delete_placeholder, device));
  attract_mode(tensor);
  return info;
}

bool is_placeholder(const c10::IValue& value) {
  return value.isTensor() && placeholder_of(value.toTensor()) != nullptr;
}

// The sum of two placeholders is a placeholder of the sum, since autograd adds gradients so.
bool adds_placeholders(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const std::string& name = op.schema().name();
  if (at::GradMode::is_enabled() || (name != "aten::add" && name != "aten::add_") ||
      op.schema().overload_name() != "Tensor" || !is_placeholder(arguments[0]) ||
      !is_placeholder(arguments[1]) || !arguments[2].toScalar().equal(1)) {
    return false;
  }
  const at::Tensor& a = arguments[0].toTensor();
  const at::Tensor& b = arguments[1].toTensor();
  const Placeholder& x = *placeholder_of(a);
  const Placeholder& y = *placeholder_of(b);
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         x.real.defined() == y.real.defined() && x.reads == y.reads &&
         x.self == a.unsafeGetTensorImpl() && y.self == b.unsafeGetTensorImpl();
}

void add_placeholders(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const at::Tensor a = (*stack)[first].toTensor();
  const at::Tensor b = (*stack)[first + 1].toTensor();
  stack->resize(first);
  Placeholder& x = *placeholder_of(a);
  const Placeholder& y = *placeholder_of(b);
  std::vector<Slot> origins = x.origins;
  origins.insert(origins.end(), y.origins.begin(), y.origins.end());
  const at::Tensor sum = x.real.defined() ? at::add(x.real, y.real) : at::Tensor();
  if (op.schema().name() == "aten::add_") {
    x.origins = std::move(origins);
    x.real = sum;
    stack->emplace_back(a);
  } else if (sum.defined()) {
    stack->emplace_back(verifying_placeholder(sum, std::move(origins), x.reads, !a.is_meta()));
  } else {
    stack->emplace_back(
        static_placeholder(at::empty(a.sizes(), a.options()), std::move(origins), x.what));
  }
}

/// Placeholders that the operator changes in place.
std::vector<at::Tensor> changed_by(
    const c10::OperatorHandle& op,
    at::ArrayRef<c10::IValue> arguments) {
  std::vector<at::Tensor> changed;
  const auto& declared = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_placeholder(arguments[i]) && declared[i].alias_info() != nullptr &&
        declared[i].alias_info()->isWrite()) {
      changed.push_back(arguments[i].toTensor());
    }
  }
  return changed;
}

/// Autograd adds to a gradient in place when nobody else holds its memory, and it sees only the
/// placeholder's. Views of the real tensor, which a deferred product holds, keep their memory; the
/// sum gets memory of its own.
void own_before_change(const at::Tensor& gradient) {
  Placeholder& info = *placeholder_of(gradient);
  if (info.real.use_count() == 1 && info.real.storage().use_count() == 1) {
    return;
  }
  // Shape and strides of the placeholder stay as they are.
  info.real = at::empty_strided(info.real.sizes(), info.real.strides(), info.real.options())
                  .copy_(info.real);
  c10::StorageImpl& storage = *gradient.storage().unsafeGetStorageImpl();
  at::DataPtr held = storage.set_data_ptr(at::DataPtr());
  const at::Device device = held.device();
  storage.set_data_ptr(
      at::DataPtr(info.real.data_ptr(), held.release_context(), &delete_placeholder, device));
}

void call_with_real(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = arguments_of(op, *stack);
  if (adds_placeholders(op, arguments)) {
    const c10::impl::ExcludeDispatchKeyGuard below(kModeKey);
    add_placeholders(op, stack);
    return;
  }
  const std::vector<at::Tensor> changed = changed_by(op, arguments);
  for (const at::Tensor& tensor : changed) {
    if (!tensor.is_meta()) { // a gradient
      own_before_change(tensor);
    }
  }
  const std::size_t first = stack->size() - arguments.size();
  for (std::size_t i = first; i < stack->size(); ++i) {
    (*stack)[i] = map_operator_tensors((*stack)[i], [&](const at::Tensor& tensor) {
      return read_tensor(tensor, operator_name(op));
    });
  }
  call_plain(op, stack);
  // From now on it is this rank's own tensor, with the grad_fn of the real one.
  for (const at::Tensor& tensor : changed) {
    Placeholder& info = *placeholder_of(tensor);
    info.origins.clear();
    if (info.real.requires_grad()) {
      torch::autograd::impl::set_gradient_edge(
          tensor, torch::autograd::impl::gradient_edge(info.real));
    }
  }
}

class PlaceholderMode : public TensorDispatchMode {
 public:
  bool owns(const at::Tensor& tensor) const override {
    return placeholder_of(tensor) != nullptr;
  }
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    call_with_real(op, stack);
  }
};

[[maybe_unused]] const bool added = [] {
  add_tensor_dispatch_mode(new PlaceholderMode);
  return true;
}();

// The operator has no tensor arguments and is to make its result on meta.
bool makes_meta_tensor(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  bool meta = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    meta = meta || (is_device_argument(op.schema().arguments()[i]) && arguments[i].isDevice() &&
                    arguments[i].toDevice().is_meta());
  }
  return meta;
}

} // namespace

Placeholder* placeholder_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return nullptr;
  }
  const at::DataPtr& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &delete_placeholder
             ? static_cast<PlaceholderHolder*>(pointer.get_context())->get()
             : nullptr;
}

at::Tensor verifying_placeholder(
    const at::Tensor& real,
    std::vector<Slot> origins,
    std::shared_ptr<ReadSlots> reads,
    bool gradient) {
  const at::NoGradGuard no_grad;
  at::Tensor made;
  Placeholder* info = nullptr;
  if (gradient) {
    made = at::from_blob(real.data_ptr(), real.sizes(), real.strides(), real.options());
    info = &attach(made, std::move(origins), real.data_ptr(), real.device());
  } else {
    made = at::empty(real.sizes(), real.options().device(at::kMeta));
    info = &attach(made, std::move(origins), nullptr, made.device());
    if (real.requires_grad()) {
      torch::autograd::impl::set_gradient_edge(made, torch::autograd::impl::gradient_edge(real));
    }
  }
  info->real = real;
  info->reads = std::move(reads);
  info->reads->device = real.device();
  return made;
}

at::Tensor static_placeholder(
    const at::Tensor& meta,
    std::vector<Slot> origins,
    std::shared_ptr<const std::string> what) {
  attach(meta, std::move(origins), nullptr, meta.device()).what = std::move(what);
  return meta;
}

at::Tensor read_tensor(const at::Tensor& tensor, const std::string& reader) {
  Placeholder* info = placeholder_of(tensor);
  if (info == nullptr) {
    return tensor;
  }
  if (!info->real.defined()) {
    throw UserError(
        str(reader,
            " reads ",
            info->what != nullptr ? *info->what : "a tensor",
            ", which this rank did not do in the verifying step of fast_mode, so "
            "the tensor went to other ranks; read it in every step, or write "
            "\"fast_mode\": false"));
  }
  const std::lock_guard lock(info->reads->mutex);
  info->reads->slots.insert(info->origins.begin(), info->origins.end());
  if (info->self == tensor.unsafeGetTensorImpl()) {
    return info->real;
  }
  // Another view of the storage, made past the dispatcher (Tensor::data()).
  at::Tensor view = info->real.detach();
  if (view.sizes() != tensor.sizes()) {
    throw UserError(
        str(reader,
            " reads a changed view of a tensor while fast_mode verifies who reads "
            "what; copy the tensor first, or write \"fast_mode\": false"));
  }
  return view;
}

void VerifyingMode::call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (makes_meta_tensor(op, arguments_of(op, *stack))) {
    reads_->all = true;
    const std::size_t first = stack->size() - op.schema().arguments().size();
    for (std::size_t i = 0; i < op.schema().arguments().size(); ++i) {
      if (is_device_argument(op.schema().arguments()[i])) {
        (*stack)[first + i] = reads_->device;
      }
    }
  }
  call_with_real(op, stack);
}

} // namespace tessera::runtime
