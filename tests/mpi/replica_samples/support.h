#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/mpi/optim/support.h"

/// Replicas that take unlike numbers of samples, beside one process with the whole batch.
namespace tessera::testing {

constexpr int kRows = 24; // of the world's batch

/// Numbers that add up to kRows, in multiples of kMicrobatches x 2 tensor-parallel ranks where
/// there may be any.
inline std::vector<int> unlike_samples(int replicas) {
  return replicas == 1   ? std::vector<int>{24}
         : replicas == 2 ? std::vector<int>{16, 8}
                         : std::vector<int>{8, 4, 2, 10};
}

struct Uneven {
  int pp = 1;
  int tp = 1;
  bool prescaled = false;
  bool fast = false; // static and fast mode
  bool reproducible = false;
  bool shares_state = false;
  int shards = 1; // sharded_data_parallel_degree

  int replicas() const {
    return world_size() / (pp * tp);
  }
  std::string text() const {
    return tessera::str(
        "pp ",
        pp,
        ", tp ",
        tp,
        prescaled ? " prescaled" : "",
        fast ? ", fast" : "",
        reproducible ? ", reproducible" : "",
        shares_state ? ", state shared out" : "",
        ", shards ",
        shards);
  }
};

inline Config config_of(const Uneven& how) {
  Config config = config_of(Layout{how.pp, how.tp});
  config.ddp = true;
  config.prescaled_batch = how.prescaled;
  config.reproducible = how.reproducible;
  config.shard_optimizer_state = how.shares_state;
  if (how.fast) {
    config.static_mode = true;
    config.static_mode_steps = 1;
    config.fast_mode = true;
  }
  if (how.shards > 1) {
    config.sharded_data_parallel_degree = how.shards;
    config.sdp_param_persistence_threshold = 0;
    config.sdp_reduce_bucket_size = 100;
    config.sdp_gradient_clipping = 1e9;
  }
  config.replica_samples = unlike_samples(how.replicas());
  return config;
}

inline std::vector<Uneven> uneven_layouts() {
  if (world_size() == 2) {
    return {{}, {.tp = 2}, {.shares_state = true}, {.shards = 2}};
  }
  return {
      {},
      {.pp = 2},
      {.pp = 2, .fast = true},
      {.pp = 2, .reproducible = true},
      {.pp = 2, .shares_state = true},
      {.pp = 2, .shards = 2},
      {.tp = 2},
      {.tp = 2, .prescaled = true},
      {.tp = 2, .shares_state = true},
      {.tp = 2, .prescaled = true, .shards = 2},
      {.shares_state = true},
      {.shards = 2},
      {.shards = 4}};
}

inline Batch batch_at(int step, at::ScalarType type = at::kFloat) {
  const Batch batch = random_batches(kRows)(step);
  return {batch.x.to(type), batch.y.to(type)};
}

/// What a script does with the key.
inline Batch own_rows(const Batch& batch) {
  const DataRows rows = data_rows(batch.x.size(0));
  return {batch.x.narrow(0, rows.begin, rows.count), batch.y.narrow(0, rows.begin, rows.count)};
}

/// The loss of the whole batch, of each rank's mean over its own samples.
inline double loss_of_all(double own) {
  double mean = 0;
  for (const double weighted : allgather(own * data_weight(), Group::kDP)) {
    mean += weighted / dp_size();
  }
  return mean;
}

inline void expect_equal_replicas(const DistributedModel<Chain>& model, const std::string& what) {
  for (const auto& [name, tensor] : model.local_parameters()) {
    for (const torch::Tensor& other : allgather(tensor.detach(), Group::kRDP)) {
      EXPECT_TRUE(other.equal(tensor.detach())) << what << ", " << name;
    }
  }
}

} // namespace tessera::testing
