#include "tessera/config/config.h"

#include "tessera/base/error.h"

namespace tessera::config {

namespace {

// Documented defaults of memory_weight.
constexpr double kMemoryWeightForSpeed = 0.2;
constexpr double kMemoryWeightForMemory = 0.8;
// Documented default of active_microbatches beyond the degree.
constexpr int kActiveBeyondDegree = 2;

} // namespace

int Config::effective_active_microbatches() const {
  return active_microbatches.value_or(pipeline_parallel_degree + kActiveBeyondDegree);
}

double Config::effective_memory_weight() const {
  return memory_weight.value_or(
      optimize == Optimize::kSpeed ? kMemoryWeightForSpeed : kMemoryWeightForMemory);
}

std::set<std::string> Config::whole_modules() const {
  std::set<std::string> paths;
  for (const auto& [path, degree] : tensor_parallel_degree_of) {
    if (degree == 1) {
      paths.insert(path);
    }
  }
  return paths;
}

std::set<std::string> Config::divided_modules() const {
  std::set<std::string> paths;
  for (const auto& [path, degree] : tensor_parallel_degree_of) {
    if (degree != 1) {
      paths.insert(path);
    }
  }
  return paths;
}

int Config::effective_default_partition() const {
  return default_partition.value_or(0);
}

void check_world(const Config& config, int world_size) {
  // 64 bits: a degree alone may be as large as an int.
  const std::int64_t replica =
      std::int64_t{config.pipeline_parallel_degree} * config.tensor_parallel_degree;
  const std::string product =
      str("pipeline_parallel_degree ",
          config.pipeline_parallel_degree,
          " x tensor_parallel_degree ",
          config.tensor_parallel_degree,
          " = ",
          replica);
  if (replica < 1 || world_size < 1 || world_size % replica != 0) {
    const std::int64_t below = replica < 1 ? 0 : world_size / replica * replica;
    throw ConfigError(
        str("world size ",
            world_size,
            " is not a multiple of ",
            product,
            "; start ",
            below > 0 ? str(below, " or ") : "",
            below + replica,
            " processes, or change a degree"));
  }
  const std::int64_t replicas = world_size / replica;
  if (replicas > 1 && !config.ddp) {
    throw ConfigError(
        str("world size ",
            world_size,
            " holds ",
            replicas,
            " replicas of the model (",
            product,
            ") but ddp is false, so their gradients would not be averaged; "
            "add \"ddp\": true, or start ",
            replica,
            " process",
            replica == 1 ? "" : "es"));
  }
  // Ranks of one TP_GROUP hold different shards already, so they share none.
  if (config.sharded_data_parallel_degree < 1 ||
      replicas % config.sharded_data_parallel_degree != 0) {
    throw ConfigError(
        str("sharded_data_parallel_degree ",
            config.sharded_data_parallel_degree,
            " does not divide the ",
            replicas,
            " replicas of the model in world size ",
            world_size,
            " (",
            product,
            "); write a divisor of ",
            replicas));
  }
  const auto given = static_cast<std::int64_t>(config.replica_samples.size());
  if (given != 0 && given != replicas) {
    throw ConfigError(
        str("replica_samples has ",
            given,
            given == 1 ? " number, but world size " : " numbers, but world size ",
            world_size,
            " holds ",
            replicas,
            replicas == 1 ? " replica of the model (" : " replicas of the model (",
            product,
            "); write one number for each, or leave it out for equal ones"));
  }
}

} // namespace tessera::config
