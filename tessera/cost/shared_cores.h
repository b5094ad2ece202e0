#pragma once

// Private to this folder: how long ranks need that share the cores of their nodes.

#include <vector>

#include "tessera/cost/cluster.h"

namespace tessera::cost {

/// What the ranks of every node compute, of which no node does more at a time than it has cores.
/// Threads: any.
class SharedCores {
 public:
  /// `cluster` must outlive it.
  explicit SharedCores(const Cluster& cluster);

  /// Adds a rank on `node` that computes for so long, in seconds. The ranks of its tensor-parallel
  /// group, which all calls for them number alike, exchange for `tensor_seconds` while none of them
  /// computes.
  void add(int node, int group, double compute_seconds, double tensor_seconds);

  /// Returns the most seconds that a node needs: for the work of its ranks on its cores, and, where
  /// all of them are of one group, for its exchanges too, beside which nothing computes.
  double seconds() const;

 private:
  static constexpr int kNone = -1;
  static constexpr int kSeveral = -2;
  struct Work {
    double compute_seconds = 0;
    double tensor_seconds = 0; // of the group
    int group = kNone;
  };

  const Cluster& cluster_;
  std::vector<Work> work_; // by node
};

} // namespace tessera::cost
