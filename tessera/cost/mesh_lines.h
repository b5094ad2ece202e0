#pragma once

// Private to this folder: where the rows and columns of meshes lie.

#include <vector>

#include "tessera/cost/constants.h"
#include "tessera/cost/group_place.h"
#include "tessera/cost/line_links.h"

namespace tessera::cost {

/// The rows and columns of the meshes of a strategy's tensor-parallel groups, whose ranks are
/// bunched (topology::MeshArrangement). All rows of a cluster broadcast at the same time, then all
/// columns; those that enter or leave a node share its network. Threads: any.
class MeshLines {
 public:
  /// Requires tp > 1.
  MeshLines(
      const Strategy& strategy,
      const Cluster& cluster,
      const Places& places,
      const Constants& constants);

  LineLinks rows(int stage) const {
    return rows_[static_cast<std::size_t>(stage)];
  }
  LineLinks columns(int stage) const {
    return columns_[static_cast<std::size_t>(stage)];
  }

 private:
  std::vector<LineLinks> rows_; // by stage
  std::vector<LineLinks> columns_;
};

} // namespace tessera::cost
