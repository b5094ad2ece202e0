#include "tessera/sharding/model_shards.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/topology/shard_groups.h"

namespace tessera::sharding {

bool ModelShards::divides(
    const Config& config,
    const std::string& name,
    const at::Tensor& parameter) {
  if (config.sharded_data_parallel_degree == 1 ||
      parameter.numel() < config.sdp_param_persistence_threshold || parameter.numel() == 0) {
    return false;
  }
  if (!parameter.is_meta() && !can_be_divided(parameter)) {
    log::warning(tessera::str(
        "the parameter '",
        name,
        "' stays whole under sharded_data_parallel_degree ",
        config.sharded_data_parallel_degree,
        ": only a contiguous floating-point tensor on the processor that shares its memory with no "
        "other tensor can be divided"));
    return false;
  }
  return true;
}

namespace {

std::vector<int> ranks_of_node(const ShardNodes& nodes, const topology::ShardGroups& groups) {
  std::vector<int> ranks;
  for (const int position : nodes.members[nodes.own]) {
    ranks.push_back(groups.shards[position]);
  }
  return ranks;
}

/// One for all models, because their shard groups have the same ranks. Collective over the first
/// model's.
std::shared_ptr<PartService> part_service(Context& context, const std::vector<int>& ranks) {
  if (context.part_service == nullptr) {
    context.part_service = std::make_shared<PartService>(*context.world, ranks);
  }
  return context.part_service;
}

} // namespace

ModelShards::ModelShards(
    Context& context,
    const NamedTensors& parameters,
    const DividedParameters::Make& make,
    const IsScaled& is_scaled,
    int number)
    : world_(context.world) {
  const topology::ShardGroups groups = topology::shard_groups(
      *context.layout, context.config.sharded_data_parallel_degree, world_->rank());
  const std::string of_model = tessera::str(" of model ", number);
  comm::ProcessGroup& shards = new_group("shards" + of_model, groups.shards);
  comm::ProcessGroup& equal = new_group("shard replicas" + of_model, groups.equal_replicas);
  const ShardNodes nodes = shard_nodes(*world_, groups.shards);
  const bool one = nodes.is_one();
  comm::ProcessGroup& node =
      one ? shards : new_group("shards of a node" + of_model, ranks_of_node(nodes, groups));
  parameters_ = std::make_unique<DividedParameters>(
      shards,
      DividedParameters::Gathering{
          .nodes = nodes,
          .node = node,
          .service = one ? nullptr : part_service(context, groups.shards),
          .hierarchical = context.config.sdp_hierarchical_allgather,
          .most_elements = context.config.sdp_max_live_parameters},
      parameters,
      make);
  add_reducer(
      context,
      {shards, equal, *context.control},
      [&](const std::string& name) { return !is_scaled(name); },
      1.0 / context.group(Group::kDP).size());
  if (context.group(Group::kTP).size() == 1) {
    return;
  }
  // Which bucket of the two leaves first, a flow decides; in one group ranks would differ.
  comm::ProcessGroup& own = new_group("tp shards" + of_model, groups.shards);
  comm::ProcessGroup& replicas = new_group("tp shard replicas" + of_model, groups.replicas);
  add_reducer(context, {own, replicas, *context.rdp_control}, is_scaled, 1.0 / context.data_size());
}

comm::ProcessGroup& ModelShards::new_group(const std::string& name, const std::vector<int>& ranks) {
  return *groups_.emplace_back(world_->new_group(name, ranks));
}

void ModelShards::add_reducer(
    const Context& context,
    const ShardReducer::Groups& groups,
    const std::function<bool(const std::string& name)>& takes,
    double scale) {
  const Config& config = context.config;
  ShardReducer::Options options;
  options.bucket_elements = config.sdp_reduce_bucket_size;
  options.scale = scale;
  options.weight = context.data_weight();
  options.f32_sums = config.fp32_grad_accumulation;
  if (config.pipeline_parallel_degree > 1) {
    options.microbatches = config.reproducible ? ShardReducer::Microbatches::kOrdered
                                               : ShardReducer::Microbatches::kOverlapping;
  }
  std::vector<const DividedParameter*> list;
  for (const DividedParameter& parameter : parameters_->list()) {
    if (takes(parameter.name)) {
      list.push_back(&parameter);
    }
  }
  reducers_.push_back(std::make_unique<ShardReducer>(*world_, list, groups, options));
}

at::Tensor ModelShards::updated_part(const at::Tensor& parameter) const {
  const DividedParameter* found = parameters_->find(parameter);
  return found == nullptr ? parameter : found->part;
}

bool ModelShards::assign(const at::Tensor& parameter, const at::Tensor& whole) const {
  const DividedParameter* found = parameters_->find(parameter);
  if (found == nullptr) {
    return false;
  }
  const at::NoGradGuard no_grad;
  found->part.detach().copy_(parameters_->part_of(*found, whole));
  return true;
}

void ModelShards::begin_step(int microbatches) {
  parameters_->check_handles();
  if (parameters_->gatherer() != nullptr) {
    parameters_->gatherer()->begin_step();
  }
  for (const auto& reducer : reducers_) {
    reducer->expect_microbatches(microbatches);
  }
}

void ModelShards::end_microbatch() {
  for (const auto& reducer : reducers_) {
    reducer->end_microbatch();
  }
}

void ModelShards::settle() {
  for (const auto& reducer : reducers_) {
    reducer->settle();
  }
}

} // namespace tessera::sharding
