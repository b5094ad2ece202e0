#include "tessera/planner/objective.h"

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera::planner {

namespace {

constexpr double kSecondsPerHour = 3600;

std::array<double, 3> all_of(const StepCosts& costs) {
  return {costs.seconds, costs.price, costs.joules};
}

// Whether `one` is nowhere worse than `other`, and somewhere better.
bool beats(const StepCosts& one, const StepCosts& other) {
  const auto a = all_of(one);
  const auto b = all_of(other);
  bool better = false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] > b[i]) {
      return false;
    }
    better = better || a[i] < b[i];
  }
  return better;
}

} // namespace

StepCosts step_costs(const Candidate& candidate, const cost::Cluster& cluster) {
  const cost::Strategy& strategy = candidate.strategy;
  StepCosts costs;
  costs.seconds = candidate.seconds();
  // The parts of the estimate, stretched to the simulated seconds if there are any.
  const double stretch = costs.seconds / candidate.cost.seconds;
  const std::vector<int> node_of_device = cluster.node_of_device();
  bool priced = true;
  bool powered = true;
  for (int rank = 0; rank < strategy.devices(); ++rank) {
    const int node = node_of_device[at(strategy.device_of_rank[at(rank)])];
    const cost::DeviceKind& kind = cluster.kinds[at(cluster.nodes[at(node)].kind)];
    priced = priced && kind.price_per_hour > 0;
    powered = powered && kind.watts > 0;
    costs.price += kind.price_per_hour / kSecondsPerHour * costs.seconds;
    const auto& stage = candidate.cost.stages[at(rank / (strategy.dp * strategy.tp))];
    const double busy = std::min(
        costs.seconds,
        stretch * (candidate.microbatches * stage.seconds() + stage.optimizer_seconds));
    const double idle_watts = kind.idle_watts > 0 ? kind.idle_watts : kind.watts;
    costs.joules += kind.watts * busy + idle_watts * (costs.seconds - busy);
  }
  costs.price = priced ? costs.price : 0;
  costs.joules = powered ? costs.joules : 0;
  return costs;
}

double value_of(Objective objective, const StepCosts& costs) {
  switch (objective) {
    case Objective::kTime:
      return costs.seconds;
    case Objective::kCost:
      return costs.price;
    case Objective::kEnergy:
      return costs.joules;
  }
  throw InternalError("no such objective");
}

void check_objective(Objective objective, const cost::Cluster& cluster) {
  for (const cost::DeviceKind& kind : cluster.kinds) {
    if (objective == Objective::kCost && kind.price_per_hour == 0) {
      throw ConfigError(str(
          "cluster: devices.",
          kind.name,
          ".price_per_hour: is not said, so the cheapest strategy is not known; write the price "
          "of one device, or take the objective \"time\""));
    }
    if (objective == Objective::kEnergy && kind.watts == 0) {
      throw ConfigError(str(
          "cluster: devices.",
          kind.name,
          ".watts: is not said, so the strategy of the least energy is not known; write what one "
          "device draws at work, or take the objective \"time\""));
    }
  }
}

std::vector<Candidate> front_of(
    const std::vector<Candidate>& candidates,
    const cost::Cluster& cluster) {
  std::vector<StepCosts> costs;
  for (const Candidate& candidate : candidates) {
    costs.push_back(step_costs(candidate, cluster));
  }
  std::vector<Candidate> front;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    bool stays = true;
    for (std::size_t j = 0; j < candidates.size() && stays; ++j) {
      const bool same_before = j < i && all_of(costs[j]) == all_of(costs[i]);
      stays = !beats(costs[j], costs[i]) && !same_before;
    }
    if (stays) {
      front.push_back(candidates[i]);
    }
  }
  std::stable_sort(front.begin(), front.end(), [](const Candidate& a, const Candidate& b) {
    return a.seconds() < b.seconds();
  });
  return front;
}

} // namespace tessera::planner
