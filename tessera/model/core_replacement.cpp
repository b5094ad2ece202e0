// ModelCore's part of tensor and data parallelism: distributed modules in the place of marked ones,
// their weights, and what joins the replicas.

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/model/model_core.h"
#include "tessera/nn/managed/manage.h"
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

bool is_delayed(const nn::ReplacedModule& replaced) {
  for (const auto& [name, tensor] : replaced.tensors) {
    if (tracer::is_delayed(tensor)) {
      return true;
    }
  }
  return false;
}

} // namespace

void ModelCore::replace_modules() {
  Context& context = this->context();
  const int tp_size = context.group(Group::kTP).size();
  replacements_.root = root_;
  if (tp_size > 1) {
    replacements_ = nn::replace_marked(root_, make_beside);
    root_ = replacements_.root;
    if (context.world->rank() == 0) {
      for (const std::string& line : nn::text_of(replacements_)) {
        log::info("tensor parallelism: " + line);
      }
      if (replacements_.replaced.empty()) {
        log::warning(
            str("tensor_parallel_degree is ",
                tp_size,
                ", but no module was replaced; mark modules with tessera::tensor_parallelism"));
      }
    }
  }
  if (context.config.mesh_memory == config::MeshMemory::kManaged) {
    nn::managed::manage_layers(*root_);
  }
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
  NamedTensors whole;
  NamedTensors divided;
  for (const auto& item : local_parameters()) {
    const bool divides = sharding::ModelShards::divides(context.config, item.first, item.second);
    (divides ? divided : whole).push_back(item);
  }
  broadcast_from_first(whole);
  broadcast_from_first(local_buffers());
  if (context.config.sharded_data_parallel_degree > 1) {
    const auto make = [this](const std::string& name, const at::Tensor& parameter) {
      tracer::materialize(std::vector<at::Tensor>{parameter});
      broadcast_from_first({{name, parameter}});
    };
    shards_ = std::make_unique<sharding::ModelShards>(context, divided, make, number_);
  }
  NamedTensors equal;
  NamedTensors scaled;
  for (const auto& item : whole) {
    (layout_->is_scaled_batch(item.first) ? scaled : equal).push_back(item);
  }
  data_parallel::GradientSync::Options options;
  options.reducer.bucket_bytes = static_cast<std::int64_t>(options_.bucket_cap_mb * (1 << 20));
  options.reducer.overlap = options_.overlapping_allreduce;
  options.reducer.ordered =
      context.config.reproducible && context.config.pipeline_parallel_degree > 1;
  options.backward_passes_per_step = options_.backward_passes_per_step;
  if (!only) {
    options.own_groups = number_;
  }
  gradients_ = std::make_unique<data_parallel::GradientSync>(
      context, std::move(equal), std::move(scaled), options);
  if (shards_ != nullptr) {
    gradients_->add(shards_->reducer());
  }
}

} // namespace tessera::model
