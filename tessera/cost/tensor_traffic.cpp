#include "tessera/cost/tensor_traffic.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tessera/base/index.h"
#include "tessera/cost/layer_rows.h"

namespace tessera::cost {

namespace {

// A collective is known by operation, ranks and bytes.
using Key = std::tuple<std::string, int, double>;

} // namespace

TensorTraffic::TensorTraffic(const Cluster& cluster, int degree, const LayerRows& rows)
    : layers_(static_cast<int>(rows.layers.size())) {
  const int most = std::min(degree, static_cast<int>(cluster.nodes.size()));
  std::set<Span> spans;
  for (int count = 1; count <= most; ++count) {
    spans.insert({count, {}});
  }
  for (const CollectiveTime& one : cluster.collectives) {
    if (one.ranks <= degree && one.nodes <= most) {
      spans.insert({one.nodes, one.among});
    }
  }
  for (const Span& span : spans) {
    std::map<Key, KnownCollective> looked_up; // layers repeat each other's
    const auto add = [&](const std::vector<TensorCollective>& collectives, PassTraffic& sum) {
      for (const TensorCollective& one : collectives) {
        if (one.line != MeshLine::kNone) {
          Traffic& line = one.line == MeshLine::kRow ? sum.rows : sum.columns;
          line.add({.wire_bytes = one.times * one.bytes, .steps = 1.0 * one.times});
          continue;
        }
        const bool at_one_time = span.count == 1;
        const double bytes = at_one_time ? one.bytes * one.panels : one.bytes;
        const int times = at_one_time ? one.times : one.times * one.panels;
        const auto [place, is_new] = looked_up.try_emplace({one.operation, one.ranks, bytes});
        if (is_new) {
          place->second = cluster.collective(one.operation, one.ranks, span, bytes);
        }
        const KnownCollective& found = place->second;
        const Traffic measured = {.seconds = times * found.seconds};
        const Traffic ring =
            ring_traffic(one.operation, one.ranks, std::min(span.count, one.ranks), bytes)
                .times(times);
        sum.known.add(found.seconds > 0 ? measured : ring);
        sum.ring.add(found.seconds > 0 && !found.elsewhere ? measured : ring);
      }
    };
    std::vector<Sums> sums(1);
    const auto append = [&](const PassCollectives& exchanged) {
      Sums sum = sums.back();
      add(exchanged.forward, sum.forward);
      add(exchanged.backward, sum.backward);
      sums.push_back(sum);
    };
    for (const LayerRow& row : rows.layers) {
      append(row.exchanged);
    }
    append(rows.tail_exchanged);
    sums_.emplace(span, std::move(sums));
  }
}

const std::vector<TensorTraffic::Sums>& TensorTraffic::sums_of(const Span& span) const {
  const auto own = sums_.find(span);
  return own != sums_.end() ? own->second : sums_.at({span.count, {}});
}

PassSeconds TensorTraffic::seconds(int first, int last, const StageLinks& place) const {
  PassSeconds slowest;
  if (sums_.empty()) {
    return slowest;
  }
  const auto on_lines = [](const Traffic& traffic, const LineLinks& lines) {
    return traffic.wire_bytes * lines.seconds_per_byte + traffic.steps * lines.message_seconds;
  };
  const auto between = [&](const PassTraffic& from, const PassTraffic& to) {
    const double whole = std::max(
        (to.known - from.known).seconds_at(place.tensor_bytes_per_s, place.tensor_step),
        (to.ring - from.ring).seconds_at(place.tensor_bytes_per_s, place.tensor_step));
    return whole + on_lines(to.rows - from.rows, place.rows) +
           on_lines(to.columns - from.columns, place.columns);
  };
  for (const Span& span : place.tensor_nodes) {
    const std::vector<Sums>& sums = sums_of(span);
    const Sums& from = sums[at(first)];
    const Sums& to = sums[at(last)];
    slowest.forward = std::max(slowest.forward, between(from.forward, to.forward));
    slowest.backward = std::max(slowest.backward, between(from.backward, to.backward));
  }
  return slowest;
}

PassSeconds TensorTraffic::tail_seconds(const StageLinks& place) const {
  return seconds(layers_, layers_ + 1, place);
}

} // namespace tessera::cost
