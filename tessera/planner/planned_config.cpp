#include "tessera/planner/planned_config.h"

#include "tessera/base/json/parse.h"
#include "tessera/config/keys.h"

namespace tessera::planner {

namespace {

constexpr const char* kPlannedKeys[] = {
    "pipeline_parallel_degree",
    "tensor_parallel_degree",
    "tensor_parallel_degree_of",
    "tensor_parallel_kind",
    "optimize",
    "prescaled_batch",
    "ddp",
    "replica_samples",
    "microbatches",
    "pipeline",
    "custom_schedule",
    "active_microbatches",
    "placement_strategy",
    "auto_partition",
    "default_partition",
    "partition",
    "partition_file",
    "load_partition",
    "shard_optimizer_state",
    "sharded_data_parallel_degree",
};

const config::Key& key_of(const char* name) {
  const config::Key* key = config::find_key(name);
  TESSERA_CHECK(key != nullptr, "no configuration key ", name);
  return *key;
}

} // namespace

std::vector<std::string> planned_keys_said(const config::Config& config) {
  const config::Config usual;
  std::vector<std::string> said;
  for (const char* name : kPlannedKeys) {
    const config::Key& key = key_of(name);
    if (config::get(key, config) != config::get(key, usual)) {
      said.emplace_back(name);
    }
  }
  return said;
}

std::vector<std::string> replaced_keys(const config::Config& base, const config::Config& planned) {
  std::vector<std::string> replaced = planned_keys_said(base);
  std::erase_if(replaced, [&](const std::string& name) {
    const config::Key& key = key_of(name.c_str());
    return config::get(key, base) == config::get(key, planned);
  });
  return replaced;
}

config::Config with_plan(const config::Config& base, const config::Config& planned) {
  config::Config result = planned;
  // Copy every key from `base` that a plan does not decide.
  for (const config::Key& key : config::keys()) {
    bool of_plan = key.status == config::Status::kRefused;
    for (const char* name : kPlannedKeys) {
      of_plan = of_plan || key.name == name;
    }
    const config::Value value = of_plan ? config::Value{} : get(key, base);
    if (!of_plan && !std::holds_alternative<std::monostate>(value)) {
      config::set(key, result, value);
    }
  }
  // What a plan says only where it helps; a base that says so keeps it.
  result.offload_activations = base.offload_activations || planned.offload_activations;
  result.static_mode = base.static_mode || planned.static_mode;
  result.fast_mode = base.fast_mode || planned.fast_mode;
  config::validate(result);
  return result;
}

config::Config with_plan(const config::Config& base, const std::string& planned) {
  return with_plan(base, config::parse_config(planned, "the plan"));
}

std::string to_short_json(const config::Config& config) {
  const auto all = OrderedJson::parse(config::to_json(config));
  const auto usual = OrderedJson::parse(config::to_json(config::Config{}));
  OrderedJson said = OrderedJson::object();
  for (const auto& item : all.items()) {
    if (!usual.contains(item.key()) || usual[item.key()] != item.value()) {
      said[item.key()] = item.value();
    }
  }
  return said.dump(2);
}

} // namespace tessera::planner
