#include "tessera/cost/gradient_overlap.h"

#include <algorithm>
#include <cmath>

#include "tessera/cost/links.h"

namespace tessera::cost {

double exposed_gradient_seconds(
    const Strategy& strategy,
    const Cluster& cluster,
    const GradientLoad& load,
    const Constants& constants) {
  const std::size_t stages = load.parameters.size();
  // A divided optimizer state has one owner of every gradient. The way to it, half of an
  // all-reduce, can run beside a backward; the updated parameters return behind the step.
  const double beside = strategy.shard_optimizer_state ? 0.5 : 1;
  // Returns the seconds until the first `count` stages are reduced, if nothing else is.
  const auto reduced = [&](std::size_t count) {
    std::vector<double> parameters = load.parameters;
    std::vector<double> whole = load.whole;
    std::fill(parameters.begin() + static_cast<std::ptrdiff_t>(count), parameters.end(), 0);
    std::fill(whole.begin() + static_cast<std::ptrdiff_t>(count), whole.end(), 0);
    const std::vector<double> none(stages, 0);
    return beside * gradient_sync_seconds(strategy, cluster, parameters, whole, none, constants);
  };
  const double all = reduced(stages);
  double exposed = 0;
  double before = 0; // of the stages so far
  double window = 0; // from the end of this stage's last backward to that of stage 0
  // The links work off what has been handed to them. What a bucket waits for is its own reduction
  // and that of all that is handed over after it: the rest of its stage and the stages in front.
  for (std::size_t k = 0; k < stages && window < all; ++k) {
    const double until = k + 1 == stages ? all : reduced(k + 1);
    const double buckets = std::max(
        1.0,
        std::ceil(
            load.parameters[k] * constants.gradient_wire_bytes / constants.gradient_bucket_bytes));
    const double last_bucket = before + (until - before) / buckets - window;
    window += load.backward_seconds[k];
    const double first_bucket = until - (window - load.backward_seconds[k] / buckets);
    exposed = std::max({exposed, first_bucket, last_bucket});
    before = until;
  }
  // Tied parameters have a price of their own, because a difference of two prices could fall where
  // a link becomes slower.
  const std::vector<double> none(stages, 0);
  return exposed + all / beside * (1 - beside) +
         gradient_sync_seconds(strategy, cluster, none, none, load.tied, constants);
}

bool reduces_beside_backwards(const Cluster& cluster) {
  return std::none_of(cluster.nodes.begin(), cluster.nodes.end(), [](const Node& node) {
    return node.cores > 0 && node.count > 1;
  });
}

} // namespace tessera::cost
