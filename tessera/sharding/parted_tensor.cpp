#include "tessera/sharding/parted_tensor.h"

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/autograd/f32_gradients.h"
#include "tessera/base/error.h"

namespace tessera::sharding {

namespace {

/// What a storage without memory stands for.
struct Record {
  std::shared_ptr<const Source> source;
  std::shared_ptr<GradientSlot> gradient; // exactly one of the two
};

void delete_record(void* context) {
  delete static_cast<Record*>(context);
}

// Views take their device from the storage, so it says the one on which the numbers will be.
at::DataPtr without_memory(Record record) {
  return {nullptr, new Record(std::move(record)), &delete_record, at::Device(at::kCPU)};
}

const Record* record_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kModeKey) || !tensor.has_storage()) {
    return nullptr;
  }
  const at::DataPtr& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &delete_record ? static_cast<const Record*>(pointer.get_context())
                                                 : nullptr;
}

/// Operators that ask for shape and dtype, and those whose result is a view, whatever the strides.
bool reads_no_numbers(const std::string& name) {
  static constexpr std::array<std::string_view, 25> kNames = {
      "aten::t",           "aten::transpose", "aten::permute",          "aten::numpy_T",
      "aten::view",        "aten::view_as",   "aten::detach",           "aten::detach_",
      "aten::alias",       "aten::slice",     "aten::select",           "aten::narrow",
      "aten::unsqueeze",   "aten::squeeze",   "aten::expand",           "aten::expand_as",
      "aten::as_strided",  "aten::unbind",    "aten::split_with_sizes", "aten::split",
      "aten::chunk",       "aten::diagonal",  "aten::requires_grad_",   "aten::retain_grad",
      "aten::is_same_size"};
  return name.ends_with("_like") || name.starts_with("aten::new_") ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

std::string operator_text(const c10::OperatorHandle& op) {
  return op.schema().name();
}

/// For the time of an operator storages have the memory in which their numbers lie.
class Shown {
 public:
  struct Entry {
    c10::StorageImpl* storage;
    std::shared_ptr<const Source> source;
  };
  explicit Shown(std::vector<Entry> entries) : entries_(std::move(entries)) {
    gather();
    hollow_.reserve(entries_.size());
    for (const Entry& entry : entries_) {
      hollow_.push_back(entry.storage->set_data_ptr({entry.source->numbers, at::Device(at::kCPU)}));
    }
  }
  ~Shown() {
    for (std::size_t i = 0; i < hollow_.size(); ++i) {
      entries_[i].storage->set_data_ptr(std::move(hollow_[i]));
    }
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

 private:
  /// What one gatherer has to fetch is asked for together.
  void gather() {
    std::map<std::shared_ptr<Gatherer>, std::vector<int>> wanted;
    for (const Entry& entry : entries_) {
      if (entry.source->gatherer != nullptr) {
        wanted[entry.source->gatherer].push_back(entry.source->index);
      }
    }
    for (auto& [gatherer, parameters] : wanted) {
      readings_.emplace_back(gatherer, std::move(parameters));
    }
  }

  std::list<Reading> readings_; // end after the storages have been emptied again
  std::vector<Entry> entries_;
  std::vector<at::DataPtr> hollow_;
};

[[noreturn]] void refuse_write(const c10::OperatorHandle& op, const Source& source) {
  throw UserError(
      str(operator_text(op),
          " writes to the parameter '",
          source.name,
          "', of which each of ",
          source.degree,
          " ranks keeps a part (sharded_data_parallel_degree); change parameters before the "
          "DistributedModel is made, or with model.load_state_dict; updates are made by a "
          "tessera::DistributedOptimizer"));
}

[[noreturn]] void refuse_gradient(const c10::OperatorHandle& op, const GradientSlot& slot) {
  throw UserError(
      str(operator_text(op),
          " asks for the gradient of the parameter '",
          slot.name,
          "', of which each rank of its shard group keeps a part "
          "(sharded_data_parallel_degree); its numbers are clipped inside optimizer.step() "
          "(sdp_gradient_clipping), whose global_grad_norm() tells their norm. A gradient can be "
          "set to zero, multiplied by a number, and a backward outside of steps adds to it"));
}

/// Works on the parts in place of the whole gradient. The result is the handle.
void change_gradient(const c10::OperatorHandle& op, torch::jit::Stack* stack, GradientSlot& slot) {
  const at::NoGradGuard no_grad;
  const std::vector<c10::IValue> given = arguments_of(op, *stack).vec();
  const std::string& name = op.schema().name();
  const auto change = [&](auto&& apply) {
    for (at::Tensor tensor : {slot.part.grad(), slot.sum, slot.extra}) {
      if (tensor.defined()) {
        apply(tensor);
      }
    }
  };
  if (name == "aten::zero_") {
    set_to_zero(slot);
    change([](at::Tensor& tensor) { tensor.zero_(); });
  } else if (name == "aten::mul_" || name == "aten::div_") {
    const c10::IValue& factor = given.at(1);
    if (given.size() != 2 || (factor.isTensor() && factor.toTensor().numel() != 1)) {
      refuse_gradient(op, slot);
    }
    fill_zero(slot); // a factor may be infinite
    const at::Scalar number = factor.isTensor() ? factor.toTensor().item() : factor.toScalar();
    change([&](at::Tensor& tensor) {
      name == "aten::mul_" ? tensor.mul_(number) : tensor.div_(number);
    });
  } else if (
      name == "aten::add_" && given.at(1).isTensor() && !given.at(1).toTensor().is_sparse() &&
      record_of(given.at(1).toTensor()) == nullptr) {
    at::Tensor added = given.at(1).toTensor() * given.at(2).toScalar();
    if (slot.f32_sums) {
      added = added.to(f32_sum_options(slot.part).dtype());
    }
    slot.extra = slot.extra.defined() ? slot.extra + added : added;
  } else {
    refuse_gradient(op, slot);
  }
  stack->resize(stack->size() - given.size());
  stack->push_back(given.at(0));
}

class PartedTensorMode : public TensorDispatchMode {
 public:
  bool owns(const at::Tensor& tensor) const override {
    return record_of(tensor) != nullptr;
  }

  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    if (reads_no_numbers(op.schema().name())) {
      call_plain(op, stack);
      return;
    }
    std::vector<Shown::Entry> entries;
    std::shared_ptr<GradientSlot> gradient;
    bool first = true;
    const auto arguments = arguments_of(op, *stack);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      for_each_operator_tensor(arguments[i], [&](const at::Tensor& tensor) {
        const Record* record = record_of(tensor);
        if (record == nullptr) {
          return;
        }
        if (record->gradient != nullptr) {
          if (!is_written(op.schema().arguments()[i]) || i > 0 || !first) {
            refuse_gradient(op, *record->gradient);
          }
          gradient = record->gradient;
          first = false;
          return;
        }
        if (is_written(op.schema().arguments()[i])) {
          refuse_write(op, *record->source);
        }
        c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
        if (std::none_of(entries.begin(), entries.end(), [&](const Shown::Entry& entry) {
              return entry.storage == storage;
            })) {
          entries.push_back({storage, record->source});
        }
      });
    }
    if (gradient != nullptr) {
      change_gradient(op, stack, *gradient);
      return;
    }
    const Shown shown(std::move(entries));
    call_seen(op, stack);
  }
};

// Never destroyed: handles may outlive static objects.
void watch() {
  static PartedTensorMode* const mode = [] {
    auto* made = new PartedTensorMode;
    add_guard_dispatch_mode(made);
    return made;
  }();
  TESSERA_CHECK(mode != nullptr);
}

} // namespace

void set_to_zero(GradientSlot& slot) {
  at::Tensor& average = slot.part.mutable_grad();
  slot.zero = slot.zero || average.defined();
  average = at::Tensor();
}

void fill_zero(GradientSlot& slot) {
  if (std::exchange(slot.zero, false)) {
    const at::Tensor part = slot.part.detach();
    slot.part.mutable_grad() =
        at::zeros(part.sizes(), slot.f32_sums ? f32_sum_options(part) : part.options());
  }
}

void make_parted(const at::Tensor& parameter, std::shared_ptr<const Source> source) {
  watch();
  parameter.storage().unsafeGetStorageImpl()->set_data_ptr(
      without_memory({std::move(source), nullptr}));
  attract_mode(parameter);
}

bool is_parted(const at::Tensor& parameter) {
  const Record* record = record_of(parameter);
  return record != nullptr && record->source != nullptr;
}

at::Tensor gradient_handle(const at::Tensor& parameter, std::shared_ptr<GradientSlot> slot) {
  watch();
  at::Tensor made = at::empty({0}, parameter.options().requires_grad(false));
  made.storage().unsafeGetStorageImpl()->set_data_ptr(without_memory({nullptr, std::move(slot)}));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(parameter.sizes(), parameter.strides());
  attract_mode(made);
  return made;
}

bool is_gradient_handle(const at::Tensor& tensor) {
  const Record* record = record_of(tensor);
  return record != nullptr && record->gradient != nullptr;
}

} // namespace tessera::sharding
