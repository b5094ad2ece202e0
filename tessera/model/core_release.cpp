// The way back: ModelCore makes of a model of several ranks the ordinary modules that the script
// gave.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/model/model_core.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/parallel/distributed_module.h"

namespace tessera::model {

void ModelCore::check_may_be_released() const {
  plan();
  std::set<const torch::nn::Module*> made_here;
  for (const nn::ReplacedModule& replaced : replacements_.replaced) {
    for (const auto& module : replaced.module->modules()) {
      made_here.insert(module.get());
    }
  }
  for (const auto& item : root_->named_modules()) {
    const torch::nn::Module* module = item.value().get();
    if (dynamic_cast<const nn::DistributedModule*>(module) != nullptr &&
        !made_here.contains(module)) {
      throw ConfigError(
          str("cpu() of the model '",
              label_,
              "': '",
              item.key(),
              "' is a ",
              nn::type_name(*module),
              " that the script has built, which is no module of one process; mark an ordinary "
              "module with tessera::tensor_parallelism in its place, or take state_dict()"));
    }
  }
}

void ModelCore::put_originals_back() {
  std::map<const torch::nn::Module*, std::shared_ptr<torch::nn::Module>> originals;
  for (const nn::ReplacedModule& replaced : replacements_.replaced) {
    originals.emplace(replaced.module.get(), replaced.original);
    nn::end_replacement(*replaced.original);
    replaced.original->train(replaced.module->is_training());
  }
  for (const auto& module : root_->modules()) {
    for (const auto& child : module->named_children()) {
      if (const auto found = originals.find(child.value().get()); found != originals.end()) {
        module->replace_module(child.key(), found->second); // perhaps one of several parents
      }
    }
  }
  if (const auto found = originals.find(root_.get()); found != originals.end()) {
    root_ = found->second;
  }
  replacements_ = {};
  replacements_.root = root_;
}

void ModelCore::release(TensorMap state) {
  released_ = true;
  gradients_.reset();
  shards_.reset();
  plain_backward_.reset();
  operations_.reset();
  table_.reset();
  plan_.reset();
  partition_hooks_.clear();
  first_step_hooks_.clear();
  put_originals_back();
  const at::NoGradGuard no_grad;
  std::set<const void*> seen;
  for (const auto& [name, tensor] : all_tensors()) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) {
      continue; // a state has it under its first name
    }
    const auto found = state.find(name);
    TESSERA_CHECK(found != state.end(), "'", name, "' is not in the state of '", label_, "'");
    tensor.mutable_grad() = at::Tensor();
    tracer::give_memory(tensor, found->second.to(tensor.scalar_type()));
  }
}

} // namespace tessera::model
