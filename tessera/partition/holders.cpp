#include "tessera/partition/holders.h"

#include <algorithm>

namespace tessera::partitioning {

std::vector<int> count_holders(const graph::ModelGraph& graph, const graph::ModuleTree& tree) {
  std::vector<int> holders(tree.nodes.size(), 0);
  for (std::size_t n = tree.nodes.size(); n-- > 0;) {
    const graph::ModuleNode& node = tree.nodes[n];
    const bool holds = std::any_of(node.modules.begin(), node.modules.end(), [&graph](int module) {
      return !graph.modules[module].parameters.empty();
    });
    holders[n] += holds ? 1 : 0;
    if (n > 0) {
      holders[node.parent] += holders[n];
    }
  }
  return holders;
}

} // namespace tessera::partitioning
