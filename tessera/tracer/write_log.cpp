#include "tessera/tracer/write_log.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/nn/module/remote_tensor.h"

namespace tessera::tracer {

namespace {

const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Returns whether an operator keeps the numbers, although its schema says that it writes.
bool changes_no_numbers(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::requires_grad_" || name == "aten::detach_" || name == "aten::retain_grad";
}

template <typename Visit>
void for_each_written(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack,
    const Visit& visit) {
  const auto& declared = op.schema().arguments();
  const auto given = arguments_of(op, stack);
  for (std::size_t i = 0; i < declared.size(); ++i) {
    const c10::AliasInfo* alias = declared[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      for_each_operator_tensor(given[i], visit);
    }
  }
}

} // namespace

WriteLog::WriteLog(const std::vector<torch::nn::Module*>& roots) {
  for (const torch::nn::Module* root : roots) {
    for (const at::Tensor& buffer : root->buffers()) {
      of_model_.insert(buffer.defined() ? memory_of(buffer) : nullptr);
    }
    for (const at::Tensor& parameter : root->parameters()) {
      of_model_.insert(memory_of(parameter));
      if (parameter.grad().defined()) {
        of_model_.insert(memory_of(parameter.grad()));
      }
    }
  }
}

bool WriteLog::is_old(const at::Tensor& tensor) const {
  const c10::StorageImpl* memory = memory_of(tensor);
  return memory != nullptr && !made_.contains(memory) && !of_model_.contains(memory);
}

void WriteLog::operate(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack,
    const std::function<void()>& run,
    const std::function<const torch::nn::Module*(const at::Tensor&)>& owner) {
  if (!changes_no_numbers(op)) {
    for_each_written(op, *stack, [&](const at::Tensor& tensor) {
      if (is_old(tensor) && !tensor.is_meta() && nn::remote_tensor(tensor) == nullptr) {
        save(tensor, owner(tensor));
      }
    });
  }
  std::vector<const c10::StorageImpl*> old; // results that are views of these are old as well
  for (const c10::IValue& argument : arguments_of(op, *stack)) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      if (is_old(tensor)) {
        old.push_back(memory_of(tensor));
      }
    });
  }
  run();
  const std::size_t results = op.schema().returns().size();
  for (std::size_t i = stack->size() - results; i < stack->size(); ++i) {
    for_each_operator_tensor((*stack)[i], [&](const at::Tensor& tensor) {
      const c10::StorageImpl* memory = memory_of(tensor);
      if (memory != nullptr && std::find(old.begin(), old.end(), memory) == old.end()) {
        made_.insert(memory);
      }
    });
  }
}

void WriteLog::save(const at::Tensor& tensor, const torch::nn::Module* owner) {
  for (Written& written : written_) {
    if (written.storage.unsafeGetStorageImpl() == memory_of(tensor)) {
      written.owner = owner != nullptr ? owner : written.owner;
      return;
    }
  }
  const DispatchScope unseen(nullptr);
  const at::NoGradGuard no_grad;
  const c10::Storage& storage = tensor.storage();
  const at::Tensor bytes =
      at::empty({0}, at::TensorOptions(tensor.device()).dtype(at::kByte))
          .set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1});
  written_.push_back({storage, bytes, bytes.clone(), owner});
}

std::vector<const torch::nn::Module*> WriteLog::undo() {
  const DispatchScope unseen(nullptr);
  const at::NoGradGuard no_grad;
  std::vector<const torch::nn::Module*> owners;
  for (Written& written : written_) {
    if (written.storage.use_count() <= 2) { // `storage` and `bytes` are the only references left
      continue;
    }
    if (written.storage.nbytes() == static_cast<std::size_t>(written.saved.numel())) {
      written.bytes.copy_(written.saved);
    }
    if (written.owner != nullptr) {
      owners.push_back(written.owner);
    }
  }
  written_.clear();
  made_.clear();
  return owners;
}

} // namespace tessera::tracer
