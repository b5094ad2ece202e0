#include "tessera/planner/pricer.h"

#include <algorithm>
#include <limits>

#include "tessera/base/index.h"
#include "tessera/planner/layer_assignment.h"
#include "tessera/planner/runtime_abilities.h"

namespace tessera::planner {

namespace {

// Returns those of `kinds` that no other kind is as slow as, or slower, for every layer.
std::vector<int> slowest_somewhere(const std::vector<int>& kinds, const cost::LayerTable& table) {
  const auto as_slow = [&](int slow, int other) {
    for (int i = 0; i < table.layers(); ++i) {
      if (table.compute_seconds(slow, i, i + 1) < table.compute_seconds(other, i, i + 1)) {
        return false;
      }
    }
    return true;
  };
  std::vector<int> result;
  for (const int kind : kinds) {
    if (std::any_of(result.begin(), result.end(), [&](int kept) { return as_slow(kept, kind); })) {
      continue;
    }
    std::erase_if(result, [&](int kept) { return as_slow(kind, kept); });
    result.push_back(kind);
  }
  return result;
}

// Returns the parameters of the stage that has most.
double largest_stage(const cost::Strategy& strategy, const cost::LayerTable& table) {
  double largest = 0;
  for (int k = 0; k < strategy.pp; ++k) {
    largest = std::max(
        largest, table.parameters(strategy.boundaries[at(k)], strategy.boundaries[at(k + 1)]));
  }
  return largest;
}

} // namespace

cost::Strategy Pricer::strategy(const Point& point) const {
  cost::Strategy strategy;
  strategy.pp = point.pp;
  strategy.dp = point.dp;
  strategy.tp = point.tp;
  strategy.microbatch_size = point.microbatch_size;
  strategy.distribution = point.distribution;
  strategy.same_samples = point.same_samples;
  strategy.schedule = options_.schedule;
  strategy.active_microbatches = options_.runnable_only && options_.active_microbatches == 0
                                     ? point.pp + 2
                                     : options_.active_microbatches;
  strategy.activation_checkpointing = checkpointing();
  strategy.keeps_products = checkpointing() && options_.keep_products;
  strategy.shard_optimizer_state = options_.shard_optimizer_state;
  strategy.shard_parameters = options_.shard_parameters;
  strategy.overlap_gradients = options_.overlap_gradients;
  strategy.offload_optimizer_state = options_.offload_optimizer_state;
  strategy.offload_activations = options_.offload_activations;
  return strategy;
}

bool Pricer::checkpointing() const {
  return model_.activation_checkpointing &&
         (!options_.runnable_only || model_.traced() || options_.can_recompute ||
          runtime_abilities().activation_checkpointing);
}

cost::LayerTable Pricer::table(const Point& point) const {
  return {model_, cluster_, strategy(point), options_.constants};
}

double Pricer::lower_bound(const Point& point, const cost::LayerTable& table) const {
  return bound_.seconds(strategy(point), table);
}

std::optional<Candidate> Pricer::assigned(cost::Strategy strategy, const cost::LayerTable& table)
    const {
  const std::vector<double> alone(at(strategy.pp), 1.0);
  const std::vector<double> crowded = crowding(strategy);
  auto best = assigned(strategy, table, alone);
  const bool even =
      std::all_of(crowded.begin(), crowded.end(), [&](double c) { return c == crowded.front(); });
  if (best && !even) {
    auto other = assigned(std::move(strategy), table, crowded);
    if (other && other->cost.seconds < best->cost.seconds) {
      best = std::move(other);
    }
  }
  return best;
}

std::vector<double> Pricer::crowding(const cost::Strategy& strategy) const {
  const std::vector<int> node_of_device = cluster_.node_of_device();
  const auto node_of = [&](int rank) {
    return at(node_of_device[at(strategy.device_of_rank[at(rank)])]);
  };
  std::vector<double> ranks(cluster_.nodes.size(), 0);
  for (int rank = 0; rank < strategy.devices(); ++rank) {
    ranks[node_of(rank)] += 1;
  }
  std::vector<double> result(at(strategy.pp), 1.0);
  for (int rank = 0; rank < strategy.devices(); ++rank) {
    const std::size_t node = node_of(rank);
    double& of_stage = result[at(rank / (strategy.dp * strategy.tp))];
    if (cluster_.nodes[node].cores > 0) {
      of_stage = std::max(of_stage, ranks[node] / cluster_.nodes[node].cores);
    }
  }
  return result;
}

std::optional<Candidate> Pricer::assigned(
    cost::Strategy strategy,
    const cost::LayerTable& table,
    const std::vector<double>& crowded) const {
  const cost::PlacementLinks links = cost::place(strategy, cluster_, options_.constants);
  const int layers = table.layers();
  AssignmentProblem problem;
  problem.layers = layers;
  problem.stages = strategy.pp;
  problem.microbatches = strategy.microbatches(model_.global_batch_size);
  std::vector<std::vector<int>> fits(at(strategy.pp));
  for (int k = 0; k < strategy.pp; ++k) {
    const cost::StageLinks& stage = links.stages[at(k)];
    // A stage is as fast as its slowest device for its layers, and holds what its smallest one can.
    double usable = std::numeric_limits<double>::infinity();
    for (const int kind : links.kinds[at(k)]) {
      usable = std::min(
          usable,
          cluster_.kinds[at(kind)].memory_bytes *
                  cost::usable_share(model_, strategy, options_.constants) -
              options_.constants.context_bytes);
    }
    std::vector<double> sends;
    for (int i = 0; i <= layers; ++i) {
      sends.push_back(cost::send_seconds(
          links, k, table.cut_bytes(i), table.returns_home(), options_.constants));
    }
    std::vector<std::vector<double>> seconds;
    for (const int kind : slowest_somewhere(links.kinds[at(k)], table)) {
      seconds.emplace_back();
      for (int i = 0; i <= layers; ++i) {
        const cost::PassSeconds tensor = table.tensor_seconds(0, i, stage);
        const cost::PassSeconds tail =
            k == 0 && i > 0 ? table.tail_tensor_seconds(stage) : cost::PassSeconds{};
        seconds.back().push_back(
            crowded[at(k)] * table.compute_seconds(kind, 0, i) + tensor.forward + tensor.backward +
            tail.forward + tail.backward);
      }
    }
    problem.seconds.push_back(std::move(seconds.back()));
    seconds.pop_back();
    problem.other_seconds.push_back(std::move(seconds));
    if (k + 1 < strategy.pp) {
      problem.send_seconds.push_back(std::move(sends));
    }
    const cost::StageState state =
        cost::stage_state(strategy, cost::in_flight(strategy, k, problem.microbatches));
    // A stage's memory grows with its layers, so the first layer that fits only moves forward.
    int first = 0;
    for (int last = 0; last <= layers; ++last) {
      while (first < last && table.memory(first, last, state).total() > usable) {
        ++first;
      }
      fits[at(k)].push_back(first);
    }
  }
  problem.first_that_fits = [&fits](int stage, int last) { return fits[at(stage)][at(last)]; };
  Assignment assignment = assign_layers(problem);
  std::optional<Candidate> best;
  // What the assignment leaves out, at the least.
  const double least_exchange = bound_.exchange_seconds(strategy, table);
  constexpr int kMostTries = 16;
  for (int i = 0; i < kMostTries && !assignment.boundaries.empty(); ++i) {
    if (best && assignment.seconds + least_exchange >= best->cost.seconds) {
      break;
    }
    strategy.boundaries = std::move(assignment.boundaries);
    Candidate candidate;
    candidate.cost = cost::price(model_, cluster_, strategy, table, links, options_.constants);
    candidate.strategy = strategy;
    const double exchange = candidate.cost.gradient_seconds + candidate.cost.optimizer_seconds;
    const bool could_win = exchange > least_exchange * (1 + 1e-9);
    if (!best || candidate.cost.seconds < best->cost.seconds) {
      best = std::move(candidate);
    }
    if (strategy.pp == 1 || !could_win) {
      break;
    }
    const double largest = largest_stage(strategy, table);
    for (int k = 0; k < strategy.pp; ++k) {
      int first = 0;
      for (int last = 0; last <= layers; ++last) {
        first = std::max(first, fits[at(k)][at(last)]);
        while (first < last && table.parameters(first, last) >= largest) {
          ++first;
        }
        fits[at(k)][at(last)] = first;
      }
    }
    assignment = assign_layers(problem);
  }
  return best;
}

Candidate Pricer::priced(cost::Strategy strategy) const {
  Candidate candidate;
  candidate.cost = cost::price(model_, cluster_, strategy, options_.constants);
  candidate.strategy = std::move(strategy);
  return candidate;
}

} // namespace tessera::planner
