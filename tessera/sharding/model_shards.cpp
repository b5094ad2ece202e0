#include "tessera/sharding/model_shards.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/topology/shard_groups.h"

namespace tessera::sharding {

namespace {

// A bucket of more is one parameter by itself: there is no latency left to save, and its gradients
// would be kept for longer.
constexpr std::int64_t kMostBucketElements = 1 << 20;

} // namespace

bool ModelShards::divides(
    const Config& config,
    const std::string& name,
    const at::Tensor& parameter) {
  if (config.sharded_data_parallel_degree == 1 ||
      parameter.numel() < config.sdp_param_persistence_threshold) {
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

ModelShards::ModelShards(
    Context& context,
    const NamedTensors& parameters,
    const DividedParameters::Make& make,
    int number)
    : world_(context.world) {
  const Config& config = context.config;
  const topology::ShardGroups groups =
      topology::shard_groups(*context.layout, config.sharded_data_parallel_degree, world_->rank());
  shards_ = world_->new_group(tessera::str("shards of model ", number), groups.shards);
  replicas_ = world_->new_group(tessera::str("shard replicas of model ", number), groups.replicas);
  parameters_ = std::make_unique<DividedParameters>(*shards_, parameters, make);
  ShardReducer::Options options;
  options.bucket_elements = std::min(config.sdp_reduce_bucket_size, kMostBucketElements);
  options.scale = 1.0 / context.data_size();
  reducer_ =
      std::make_unique<ShardReducer>(*world_, *parameters_, *replicas_, *context.control, options);
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
  reducer_->expect_microbatches(microbatches);
}

} // namespace tessera::sharding
