#include <set>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/remote_guard.h"
#include "tessera/nn/replace/replace.h"

namespace tessera::nn {

namespace {

void fold(const torch::nn::Module& module, bool inside) {
  const bool sequence = dynamic_cast<const SequentialImpl*>(&module) != nullptr;
  inside = inside || dynamic_cast<const DistributedModule*>(&module) != nullptr;
  for (const auto& child : module.named_children()) {
    const torch::nn::Module& part = *child.value();
    if (inside && !sequence && dynamic_cast<const SequentialImpl*>(&part) == nullptr) {
      if (is_node(part)) {
        fold_into_parent(child.value());
      }
    }
    fold(part, inside);
  }
}

void collect(
    const torch::nn::Module& module,
    const std::string& path,
    std::unordered_set<const void*>& seen,
    std::map<std::string, LocalTensor>& found) {
  const auto* distributed = dynamic_cast<const DistributedModule*>(&module);
  const auto add = [&](const auto& items, bool parameter) {
    for (const auto& item : items) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) {
        continue;
      }
      LocalTensor local;
      local.tensor = tensor;
      local.parameter = parameter;
      local.shard = whole(tensor.sizes().vec());
      if (distributed != nullptr) {
        const auto& list = distributed->distributed_parameters();
        const auto description = list.find(item.key());
        if (description != list.end()) {
          local.shard = description->second.shard;
          local.distributed = true;
          local.scaled_batch = description->second.scaled_batch;
        }
      }
      found.emplace(join_path(path, item.key()), std::move(local));
    }
  };
  add(module.named_parameters(/*recurse=*/false), true);
  add(module.named_buffers(/*recurse=*/false), false);
  for (const auto& child : module.named_children()) {
    collect(*child.value(), join_path(path, child.key()), seen, found);
  }
}

} // namespace

void take_over(ReplacedModule& replaced) {
  const at::NoGradGuard no_grad;
  const TensorParallel& parallel = replaced.module->parallel();
  StateMap state;
  for (const auto& [name, tensor] : replaced.tensors) {
    at::Tensor values = tensor.detach().contiguous();
    if (parallel.size() > 1) {
      parallel.group->broadcast(
          values.scalar_type() == at::kBool ? values.view(at::kByte) : values, 0);
    }
    state.emplace(name, values);
  }
  if (replaced.rule->to_distributed) {
    state = replaced.rule->to_distributed(state, *replaced.original);
  }
  for (auto& [name, local] : local_tensors(*replaced.module)) {
    if (local.tensor.is_meta()) {
      continue; // belongs to another pipeline rank
    }
    const auto found = state.find(name);
    if (found == state.end()) {
      if (!local.parameter) {
        continue; // a buffer that only the implementation has
      }
      throw ConfigError(
          str("the state hook of ",
              replaced.rule->original,
              " gives no tensor '",
              name,
              "', a parameter of ",
              replaced.rule->distributed));
    }
    try {
      local.tensor.copy_(take_shard(local.shard, found->second));
    } catch (const ShapeError& error) {
      throw ShapeError(
          str(replaced.path.empty() ? "the model" : replaced.path,
              ", parameter '",
              name,
              "': ",
              error.what()));
    }
  }
  std::set<const void*> parameters;
  for (const at::Tensor& parameter : replaced.original->parameters()) {
    parameters.insert(parameter.unsafeGetTensorImpl());
  }
  for (auto& [name, tensor] : replaced.tensors) {
    RemoteTensor description;
    description.name = join_path(replaced.path, name);
    description.buffer = !parameters.contains(tensor.unsafeGetTensorImpl());
    description.replaced_by = replaced.rule->distributed;
    make_remote(tensor, std::move(description));
  }
  replaced.tensors.clear();
}

StateMap named_state(const torch::nn::Module& module) {
  StateMap state;
  std::unordered_set<const void*> seen;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
        state.emplace(item.key(), item.value());
      }
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return state;
}

void keep_parts_together(const torch::nn::Module& root) {
  fold(root, false);
}

std::map<std::string, LocalTensor> local_tensors(const torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  std::map<std::string, LocalTensor> found;
  collect(module, "", seen, found);
  return found;
}

} // namespace tessera::nn
