#pragma once

#include <map>
#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/collective.h"
#include "tessera/cost/described_model.h"
#include "tessera/cost/links.h"

namespace tessera::cost {

struct LayerRows;

/// The collectives of tensor-parallel groups, summed over runs of layers, for every span of nodes
/// that measurements distinguish. Threads: any.
class TensorTraffic {
 public:
  /// No collectives.
  TensorTraffic() = default;
  /// Those of the rows, for groups of `degree` ranks.
  TensorTraffic(const Cluster& cluster, int degree, const LayerRows& rows);

  /// Returns the seconds of layers [first, last) for the slowest group of a stage that is placed
  /// so. Where collectives were measured among other nodes only, they take at least what the
  /// slowest link needs for them. 0 for a place without tensor-parallel groups.
  PassSeconds seconds(int first, int last, const StageLinks& place) const;
  /// Returns those of the part that runs behind the last layer.
  PassSeconds tail_seconds(const StageLinks& place) const;

 private:
  // Both hold what was measured among the group's own nodes. Of other collectives `known` holds
  // what other nodes took, if it was measured, and `ring` what the ring sends.
  struct PassTraffic {
    Traffic known;
    Traffic ring;
    // Panels on rows and columns of a mesh: bytes that a rank sees, and messages.
    Traffic rows;
    Traffic columns;
  };
  struct Sums {
    PassTraffic forward;
    PassTraffic backward;
  };

  const std::vector<Sums>& sums_of(const Span& span) const;

  int layers_ = 0;
  /// [layer]: prefix sums. The last entry adds the part that runs behind the last layer.
  std::map<Span, std::vector<Sums>> sums_;
};

} // namespace tessera::cost
