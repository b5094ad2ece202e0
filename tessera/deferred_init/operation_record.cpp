#include "tessera/deferred_init/operation_record.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"

namespace tessera::tracer {

namespace {

using StateHolder = std::shared_ptr<StorageState>;

void delete_holder(void* context) {
  delete static_cast<StateHolder*>(context);
}

std::vector<const Operation*> needed_for(const Operation* last) {
  std::unordered_set<const Operation*> seen{last};
  std::vector<const Operation*> needed{last};
  for (std::size_t i = 0; i < needed.size(); ++i) {
    for (const TensorRef& input : needed[i]->inputs) {
      if (seen.insert(input.after.get()).second) {
        needed.push_back(input.after.get());
      }
    }
  }
  std::sort(needed.begin(), needed.end(), [](const Operation* a, const Operation* b) {
    return a->order < b->order;
  });
  return needed;
}

class Replay {
 public:
  explicit Replay(at::Device device)
      : device_(device), generator_(at::globalContext().defaultGenerator(device)) {}

  void run(const Operation& operation) {
    for (const WatchedConstant& constant : operation.constants) {
      if (constant.tensor._version() != constant.version) {
        throw ConfigError(tessera::str(
            "delay_param_initialization: a tensor of sizes ",
            constant.tensor.sizes(),
            " was given to ",
            operator_name(operation.op),
            " on a delayed tensor and changed before that was materialized; "
            "give a copy of it"));
      }
    }
    {
      const std::lock_guard lock(generator_.mutex());
      generator_.set_current_seed(operation.seed);
    }
    torch::jit::Stack stack = arguments(operation);
    call_plain(operation.op, &stack);
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& value : stack) {
      for_each_operator_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    }
    for (std::size_t i = 0; i < operation.results.size(); ++i) {
      keep(operation, operation.results[i], tensors);
    }
  }

  at::Tensor storage(std::uint64_t id) const {
    const auto entry = storages_.find(id);
    TESSERA_CHECK(entry != storages_.end(), "delayed storage ", id);
    return entry->second;
  }

 private:
  torch::jit::Stack arguments(const Operation& operation) const {
    const auto& schema = operation.op.schema().arguments();
    torch::jit::Stack stack;
    std::size_t next = 0;
    for (std::size_t i = 0; i < operation.arguments.size(); ++i) {
      if (is_device_argument(schema[i])) {
        stack.emplace_back(device_);
        continue;
      }
      stack.push_back(map_operator_tensors(operation.arguments[i], [&](const at::Tensor& tensor) {
        if (!tensor.is_meta()) {
          // This is a constant. Operators accept a number (0-dim) of the CPU on every device.
          return tensor.dim() == 0 && tensor.is_cpu() ? tensor : tensor.to(device_);
        }
        const TensorRef& input = operation.inputs.at(next++);
        return view_storage(storage(input.storage), input.geometry);
      }));
    }
    return stack;
  }

  // Stores the result that later operations refer to as `expected.storage`. It is copied if it
  // shares memory with another storage, or has other strides than recorded.
  void keep(
      const Operation& operation,
      const ResultRef& expected,
      const std::vector<at::Tensor>& tensors) {
    // The record leaves out results without a storage of their own, hence `position`.
    const at::Tensor& found = tensors.at(expected.position);
    at::Tensor kept = found;
    bool shared = false;
    for (const auto& [id, other] : storages_) {
      shared = shared || other.storage().is_alias_of(found.storage());
    }
    if (shared || Geometry(found) != expected.geometry) {
      if (found.sizes() != expected.geometry.sizes ||
          found.scalar_type() != expected.geometry.dtype) {
        throw InternalError(tessera::str(
            operator_name(operation.op),
            " gave sizes ",
            found.sizes(),
            " when it was executed and ",
            at::IntArrayRef(expected.geometry.sizes),
            " when it was delayed"));
      }
      TESSERA_CHECK(expected.geometry.offset == 0);
      kept = at::empty_strided(expected.geometry.sizes, expected.geometry.strides, found.options());
      kept.copy_(found);
    }
    storages_[expected.storage] = kept;
  }

  at::Device device_;
  at::Generator generator_;
  std::unordered_map<std::uint64_t, at::Tensor> storages_;
};

} // namespace

Geometry::Geometry(const at::Tensor& tensor)
    : sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()),
      offset(tensor.storage_offset()),
      dtype(tensor.scalar_type()) {}

// Frees a chain of operations without recursion, for which a long chain (a table filled row by
// row) would need more stack than there is.
Operation::~Operation() {
  std::vector<std::shared_ptr<Operation>> pending;
  const auto take = [&pending](Operation& operation) {
    for (TensorRef& input : operation.inputs) {
      pending.push_back(std::move(input.after));
    }
  };
  take(*this);
  while (!pending.empty()) {
    const std::shared_ptr<Operation> next = std::move(pending.back());
    pending.pop_back();
    if (next.use_count() == 1) {
      take(*next);
    }
  }
}

std::shared_ptr<StorageState> state_of(const at::Tensor& tensor) {
  if (!tensor.is_meta() || !tensor.has_storage()) {
    return nullptr;
  }
  const at::DataPtr& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &delete_holder ? *static_cast<StateHolder*>(pointer.get_context())
                                                 : nullptr;
}

void attach_state(const at::Tensor& tensor, std::shared_ptr<StorageState> state) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(
      nullptr, new StateHolder(std::move(state)), &delete_holder, at::Device(at::kMeta)));
}

at::Tensor view_storage(const at::Tensor& base, const Geometry& geometry) {
  return at::empty({0}, base.options().dtype(geometry.dtype))
      .set_(base.storage(), geometry.offset, geometry.sizes, geometry.strides);
}

at::Tensor replay(const StorageState& state, at::Device device) {
  const at::NoGradGuard no_grad;
  Replay replay(device);
  for (const Operation* operation : needed_for(state.last.get())) {
    replay.run(*operation);
  }
  return replay.storage(state.id);
}

} // namespace tessera::tracer
