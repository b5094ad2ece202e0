#include "tessera/planner/runtime_abilities.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/config/keys.h"

namespace tessera::planner {

namespace {

bool has_key(const char* name) {
  const config::Key* key = config::find_key(name);
  TESSERA_CHECK(key != nullptr, "no configuration key ", name);
  return key->status == config::Status::kAvailable;
}

} // namespace

RuntimeAbilities runtime_abilities() {
  RuntimeAbilities abilities;
  abilities.tensor_parallelism = has_key("tensor_parallel_degree");
  abilities.optimizer_sharding = has_key("shard_optimizer_state");
  abilities.parameter_sharding = has_key("sharded_data_parallel_degree");
  abilities.unlike_samples = has_key("replica_samples");
  abilities.whole_layers = has_key("tensor_parallel_degree_of");
  abilities.activation_offloading = has_key("offload_activations");
  return abilities;
}

bool hosts_are_known(const cost::Cluster& cluster) {
  return std::all_of(cluster.kinds.begin(), cluster.kinds.end(), [](const cost::DeviceKind& kind) {
    return kind.host_bytes_per_s > 0 && kind.host_memory_bytes > 0;
  });
}

} // namespace tessera::planner
