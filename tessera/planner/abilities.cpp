#include "tessera/planner/abilities.h"

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
  return abilities;
}

} // namespace tessera::planner
