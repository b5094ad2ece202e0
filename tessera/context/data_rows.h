#pragma once

#include <cstdint>
#include <vector>

#include "tessera/config/config.h"

namespace tessera {

/// How the samples of a step's batch are shared out over the ranks that are fed samples of their
/// own (data_rank of data_size): equally, or as `replica_samples` says. The ranks of a replica get
/// equally many.
class DataShares {
 public:
  struct Rows {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };

  DataShares() = default;
  /// `replicas`: of each data rank, the number of its replica (rdp_rank). Requires a configuration
  /// that was checked against the world.
  DataShares(const config::Config& config, const std::vector<int>& replicas);

  /// Whether `replica_samples` was said.
  bool are_said() const {
    return !samples_.empty();
  }
  /// Returns the samples of all ranks in a step; requires are_said().
  std::int64_t all_samples() const {
    return begins_.back();
  }
  /// Returns the rows of a data rank in a batch of this many.
  /// Throws: ShapeError when the shares do not divide the batch so, saying what to write.
  Rows rows_of(int data_rank, std::int64_t batch) const;
  /// Returns how much a mean over a data rank's samples counts in a mean over the data ranks, so
  /// that it is one over all samples: 1 where all have equally many.
  double weight_of(int data_rank) const;
  /// For each data rank the samples of those before it; empty unless are_said().
  std::vector<std::int64_t> begins() const;

 private:
  int ranks_ = 1;
  std::vector<std::int64_t> samples_; // of each data rank; empty: equally many
  std::vector<std::int64_t> begins_; // sums up to each, and of all
};

} // namespace tessera
