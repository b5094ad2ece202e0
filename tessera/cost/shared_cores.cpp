#include "tessera/cost/shared_cores.h"

#include <algorithm>

#include "tessera/base/index.h"

namespace tessera::cost {

SharedCores::SharedCores(const Cluster& cluster) : cluster_(cluster), work_(cluster.nodes.size()) {}

void SharedCores::add(int node, int group, double compute_seconds, double tensor_seconds) {
  Work& work = work_[at(node)];
  work.compute_seconds += compute_seconds;
  work.tensor_seconds = tensor_seconds;
  work.group = work.group == kNone || work.group == group ? group : kSeveral;
}

double SharedCores::seconds() const {
  double longest = 0;
  for (std::size_t n = 0; n < work_.size(); ++n) {
    const Work& work = work_[n];
    if (cluster_.nodes[n].cores > 0) {
      const double exchanges = work.group == kSeveral ? 0 : work.tensor_seconds;
      longest = std::max(longest, work.compute_seconds / cluster_.nodes[n].cores + exchanges);
    }
  }
  return longest;
}

} // namespace tessera::cost
