#pragma once

#include <map>
#include <string>

#include <mpi.h>

#include "tests/support/parity.h"
#include "tests/support/tiny_models.h"

namespace tessera::testing {

inline int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

inline Config config_of(int pp, int microbatches) {
  Config config;
  config.pipeline_parallel_degree = pp;
  config.microbatches = microbatches;
  config.ddp = world_size() > pp;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 4 << 20;
  config.memory_weight = 1.0;
  return config;
}

/// Modules by path on the pp ranks named; the rest on pp rank 0.
inline Config placed(int pp, int microbatches, std::map<std::string, int> partition) {
  Config config = config_of(pp, microbatches);
  if (pp > 1) {
    config.auto_partition = false;
    config.default_partition = 0;
    config.partition = std::move(partition);
  }
  return config;
}

/// What `run` throws, as text; empty when it does not throw an `Error`.
template <typename Error, typename Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// This replica's rows of a batch for the world.
inline Batch mine_of(const Batch& batch) {
  return part_of(batch, dp_size(), dp_rank());
}

inline DistributedOptimizer sgd(const std::vector<torch::Tensor>& parameters) {
  return DistributedOptimizer(
      torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9)));
}

} // namespace tessera::testing
