#include "tessera/cost/mesh_lines.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "tessera/base/index.h"
#include "tessera/topology/mesh_layout.h"

namespace tessera::cost {

namespace {

// This is one row or column of a mesh.
struct Line {
  int stage = 0;
  std::map<int, int> ranks; // by node

  int most_inside() const {
    int most = 1;
    for (const auto& [node, count] : ranks) {
      most = std::max(most, count);
    }
    return most;
  }
  NodeSet nodes() const {
    NodeSet nodes;
    for (const auto& [node, count] : ranks) {
      nodes.push_back(node);
    }
    return nodes;
  }
};

// This counts how many lines of one direction each network and each link carries.
class Direction {
 public:
  Direction(const Cluster& cluster, const Places& places, const Constants& constants)
      : cluster_(cluster), places_(places), constants_(constants) {}

  void add(Line line) {
    if (line.ranks.size() > 1) {
      for (const auto& [node, count] : line.ranks) {
        ++on_network_[node];
      }
      for (const int link : places_.links().among(line.nodes())) {
        ++on_link_[link];
      }
    }
    lines_.push_back(std::move(line));
  }

  std::vector<LineLinks> slowest(int stages) const {
    std::vector<LineLinks> result(at(stages));
    for (const Line& line : lines_) {
      LineLinks& slowest = result[at(line.stage)];
      const LineLinks own = of(line);
      slowest.seconds_per_byte = std::max(slowest.seconds_per_byte, own.seconds_per_byte);
      slowest.message_seconds = std::max(slowest.message_seconds, own.message_seconds);
    }
    return result;
  }

 private:
  LineLinks of(const Line& line) const {
    LineLinks links;
    const double between = std::log2(static_cast<double>(line.ranks.size()));
    const double inside = std::log2(static_cast<double>(line.most_inside()));
    double slowest_inside = std::numeric_limits<double>::infinity();
    double slowest = slowest_inside;
    for (const auto& [n, count] : line.ranks) {
      const Node& node = cluster_.nodes[at(n)];
      if (count > 1) {
        slowest_inside = std::min(slowest_inside, node.intra_bytes_per_s);
      }
      if (line.ranks.size() > 1) {
        slowest = std::min(
            {slowest,
             collective_bytes_per_s(node, count),
             node.inter_bytes_per_s / on_network_.at(n)});
      }
    }
    for (const int link : places_.links().among(line.nodes())) {
      slowest = std::min(slowest, places_.links().bytes_per_s(link) / on_link_.at(link));
    }
    links.seconds_per_byte =
        (between / slowest + inside / slowest_inside) / constants_.link_efficiency;
    const StepSeconds step = step_seconds(line.nodes(), cluster_, constants_);
    links.message_seconds = between * step.between + inside * step.inside;
    return links;
  }

  const Cluster& cluster_;
  const Places& places_;
  const Constants& constants_;
  std::vector<Line> lines_;
  std::map<int, int> on_network_;
  std::map<int, int> on_link_;
};

} // namespace

MeshLines::MeshLines(
    const Strategy& strategy,
    const Cluster& cluster,
    const Places& places,
    const Constants& constants) {
  Direction rows(cluster, places, constants);
  Direction columns(cluster, places, constants);
  for (int k = 0; k < strategy.pp; ++k) {
    for (int d = 0; d < strategy.dp; ++d) {
      std::vector<int> nodes;
      for (const int rank : places.tensor_group(k, d)) {
        nodes.push_back(places.node(rank));
      }
      const topology::MeshLayout mesh(nodes, topology::MeshArrangement::kBunched);
      const auto line = [&](const std::vector<int>& positions) {
        Line line{k, {}};
        for (const int position : positions) {
          ++line.ranks[nodes[at(position)]];
        }
        return line;
      };
      for (int i = 0; i < mesh.shape().rows; ++i) {
        rows.add(line(mesh.row(i)));
      }
      for (int j = 0; j < mesh.shape().columns; ++j) {
        columns.add(line(mesh.column(j)));
      }
    }
  }
  rows_ = rows.slowest(strategy.pp);
  columns_ = columns.slowest(strategy.pp);
}

} // namespace tessera::cost
