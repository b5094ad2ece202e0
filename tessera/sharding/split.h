#pragma once

#include "tessera/context/context.h"
#include "tessera/sharding/model_shards.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera::sharding {

/// The parameters of one model.
struct Split {
  NamedTensors divided; // each rank of a shard group is to keep a part of them
  NamedTensors whole; // each rank keeps all of them
};

/// Divides what every rank can divide (`ModelShards::divides`). A script may share a parameter's
/// memory with another tensor on some ranks only; then all ranks keep it whole.
/// `parameters`: of those that are not `is_scaled` the same, in the same order, on all ranks of the
/// DP_GROUP, of the others on those of the RDP_GROUP.
/// Collective over the DP_GROUP if parameters are divided at all. Threads: step thread only.
Split split(
    const Context& context,
    const NamedTensors& parameters,
    const ModelShards::IsScaled& is_scaled);

} // namespace tessera::sharding
