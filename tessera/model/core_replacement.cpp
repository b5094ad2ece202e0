// ModelCore's part of tensor and data parallelism: distributed modules in the place of marked ones,
// their weights, and what joins the replicas.

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/half/convert.h"
#include "tessera/model/model_core.h"
#include "tessera/nn/managed/manage.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/recomputed_call.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/sharding/split.h"
#include "tessera/tensor/random_state.h"

namespace tessera::model {

namespace {

// The script's random numbers go on as if nothing had been made here.
std::shared_ptr<nn::DistributedModule> make_beside(
    const torch::nn::Module& original,
    const nn::Make& make) {
  const auto script = RandomState::capture();
  std::shared_ptr<nn::DistributedModule> made;
  try {
    const tracer::DelayedInitScope delayed(tracer::has_delayed(original));
    made = make();
  } catch (...) {
    script.restore();
    throw;
  }
  script.restore();
  return made;
}

// A script may build distributed modules itself.
bool has_distributed(const torch::nn::Module& root) {
  const auto modules = root.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    return dynamic_cast<const nn::DistributedModule*>(module.get()) != nullptr;
  });
}

/// Gives each its path in the model. One that has several takes the last, on all ranks alike.
void name_distributed(torch::nn::Module& root) {
  for (const auto& item : root.named_modules({}, /*include_self=*/false)) {
    if (auto* module = dynamic_cast<nn::DistributedModule*>(item.value().get())) {
      module->set_path(item.key());
    }
  }
}

bool is_delayed(const nn::ReplacedModule& replaced) {
  for (const auto& [name, tensor] : replaced.tensors) {
    if (tracer::is_delayed(tensor)) {
      return true;
    }
  }
  return false;
}

std::vector<const torch::nn::Module*> sequentials_of(const torch::nn::Module& module) {
  std::vector<const torch::nn::Module*> list;
  for (const auto& inside : module.modules(/*include_self=*/false)) {
    if (dynamic_cast<const nn::SequentialImpl*>(inside.get()) != nullptr) {
      list.push_back(inside.get());
    }
  }
  return list;
}

/// Activation checkpointing that the script asked of the original, or of modules inside of it, is
/// the replacement's: of its own call, and of the layers in its Sequentials.
void carry_recomputation(const nn::ReplacedModule& replaced, bool tells) {
  if (const auto how = nn::marked_recomputation(*replaced.original)) {
    nn::set_recomputation(*replaced.module, *how);
  }
  const auto layers = sequentials_of(*replaced.module);
  for (const auto& inside : replaced.original->named_modules({}, /*include_self=*/false)) {
    auto how = nn::marked_recomputation(*inside.value());
    if (!how) {
      continue;
    }
    how->group = std::max(how->group, 1); // of a layer that was flagged by itself
    for (const torch::nn::Module* sequential : layers) {
      nn::set_recomputation(*sequential, *how);
    }
    if (layers.empty() && tells) {
      log::warning(
          str("activation checkpointing of module '",
              replaced.path,
              ".",
              inside.key(),
              "' is left out: tensor parallelism puts one module in the place of '",
              replaced.path,
              "'; flag that"));
    }
  }
}

} // namespace

void ModelCore::replace_modules() {
  Context& context = this->context();
  const int tp_size = context.group(Group::kTP).size();
  replacements_.root = root_;
  if (tp_size > 1) {
    replacements_ = nn::replace_marked(
        root_, context.config.whole_modules(), make_beside, context.config.divided_modules());
    root_ = replacements_.root;
    for (const nn::ReplacedModule& replaced : replacements_.replaced) {
      if (nn::recomputes()) {
        carry_recomputation(replaced, context.world->rank() == 0);
      }
    }
    if (context.world->rank() == 0) {
      const std::vector<std::string> lines = nn::text_of(replacements_);
      for (const std::string& line : lines) {
        log::info("tensor parallelism: " + line);
      }
      if (replacements_.replaced.empty() && !has_distributed(*root_)) {
        log::warning(str(
            "tensor_parallel_degree is ",
            tp_size,
            ", but no module was replaced; mark modules with tessera::tensor_parallelism, and hold "
            "those that are to be divided by this library's holders (tessera::nn::Linear in "
            "place of torch::nn::Linear)",
            lines.empty() ? "" : ", as the lines above say"));
      }
    }
  }
  if (context.config.fp16_params) {
    for (const auto& module : root_->modules()) {
      if (dynamic_cast<const nn::DistributedModule*>(module.get()) != nullptr) {
        const tracer::DelayedInitScope delayed(tracer::has_delayed(*module));
        half::convert(*module, at::kHalf);
      }
    }
  }
  if (context.config.mesh_memory == config::MeshMemory::kManaged) {
    nn::managed::manage_layers(*root_);
  }
  name_distributed(*root_);
  nn::keep_parts_together(*root_);
  layout_ = std::make_unique<state::StateLayout>(context, *root_, replacements_.replaced);
  for (nn::ReplacedModule& replaced : replacements_.replaced) {
    if (!is_delayed(replaced)) {
      nn::take_over(replaced);
    }
  }
}

// Of delayed modules: each rank makes the values of those it holds, one module
// at a time.
void ModelCore::take_over_weights() {
  for (nn::ReplacedModule& replaced : replacements_.replaced) {
    if (replaced.tensors.empty()) {
      continue;
    }
    if (layout_->holds_part_of(replaced.path)) {
      std::vector<at::Tensor> tensors;
      for (const auto& [name, tensor] : replaced.tensors) {
        tensors.push_back(tensor);
      }
      tracer::materialize(tensors);
      nn::take_over(replaced);
    }
    replaced.tensors.clear();
  }
}

void ModelCore::join_replicas(bool only) {
  Context& context = this->context();
  const auto is_scaled = [this](const std::string& name) { return layout_->is_scaled_batch(name); };
  const sharding::Split split = sharding::split(context, local_parameters(), is_scaled);
  broadcast_from_first(split.whole);
  broadcast_from_first(local_buffers());
  if (context.config.sharded_data_parallel_degree > 1) {
    const auto make = [this](const std::string& name, const at::Tensor& parameter) {
      tracer::materialize(std::vector<at::Tensor>{parameter});
      broadcast_from_first({{name, parameter}});
    };
    shards_ =
        std::make_unique<sharding::ModelShards>(context, split.divided, make, is_scaled, number_);
    if (context.world->rank() == 0) {
      log::info(tessera::str(
          label_,
          " is sharded: optimizer.step() clips the norm of all gradients to ",
          context.config.sdp_gradient_clipping,
          " (sdp_gradient_clipping)"));
    }
  }
  data_parallel::GradientSync::Options options;
  options.reducer.bucket_bytes = static_cast<std::int64_t>(options_.bucket_cap_mb * (1 << 20));
  options.reducer.overlap = options_.overlapping_allreduce;
  options.reducer.ordered =
      context.config.reproducible && context.config.pipeline_parallel_degree > 1;
  options.reducer.views = options_.gradient_as_bucket_view;
  options.reducer.all_used = !options_.find_unused_parameters;
  options.reducer.f32_sums = context.config.fp32_grad_accumulation;
  options.backward_passes_per_step = options_.backward_passes_per_step;
  if (!only) {
    options.own_groups = number_;
  }
  gradients_ = std::make_unique<data_parallel::GradientSync>(
      context, reduced_parameters(false), reduced_parameters(true), options);
  gradients_->set_hook(comm_hook_);
  if (context.config.shard_optimizer_state && !gradients_->has_replicas() &&
      context.world->rank() == 0) {
    log::warning(
        str("shard_optimizer_state has no effect on the model '",
            label_,
            "': there is one data-parallel rank, which keeps all of the state"));
  }
  apply_shared_states();
  if (shards_ != nullptr) {
    for (const auto& reducer : shards_->reducers()) {
      gradients_->add(*reducer);
    }
  }
}

} // namespace tessera::model
