#include "tessera/planner/pricer.h"

#include <algorithm>
#include <limits>

#include "tessera/base/index.h"
#include "tessera/planner/layer_assignment.h"
#include "tessera/planner/runtime_abilities.h"
#include "tessera/simulator/simulate.h"

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
  strategy.stages_per_rank = point.stages_per_rank;
  strategy.distribution = point.distribution;
  strategy.same_samples = point.same_samples;
  strategy.schedule = options_.schedule;
  strategy.active_microbatches = options_.runnable_only && options_.active_microbatches == 0
                                     ? point.pp + 2
                                     : options_.active_microbatches;
  strategy.fast_mode = options_.fast_mode && cost::has_relays(strategy, model_.returns_home);
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
  if (strategy.stages_per_rank > 1) {
    return assigned_in_turns(strategy, table);
  }
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
  const std::vector<double> of_node = ranks_a_core(strategy, cluster_);
  std::vector<double> result(at(strategy.pp), 1.0);
  for (int rank = 0; rank < strategy.devices(); ++rank) {
    double& of_stage = result[at(rank / (strategy.dp * strategy.tp))];
    const int device = strategy.device_of_rank[at(rank)];
    of_stage = std::max(of_stage, of_node[at(node_of_device[at(device)])]);
  }
  return result;
}

std::vector<double> Pricer::usable_bytes(const cost::PlacementLinks& links) const {
  const double share = cost::usable_share(model_, options_.constants);
  std::vector<double> result;
  for (const std::vector<int>& kinds : links.kinds) {
    // A stage holds what its smallest device can.
    double usable = std::numeric_limits<double>::infinity();
    for (const int kind : kinds) {
      usable = std::min(
          usable, cluster_.kinds[at(kind)].memory_bytes * share - options_.constants.context_bytes);
    }
    result.push_back(usable);
  }
  return result;
}

std::vector<int> Pricer::first_that_fit(
    const cost::Strategy& strategy,
    const cost::LayerTable& table,
    const cost::PlacementLinks& links,
    int stage,
    double usable) const {
  const int microbatches = strategy.microbatches(model_.global_batch_size);
  const int in_flight = cost::in_flight(strategy, stage, microbatches);
  const int rank = stage % strategy.pp;
  const bool stalls = cost::stalls(cluster_, links);
  const auto bytes_of = [&](int first, int last) {
    double waiting = 0;
    if (table.gathers() && !stalls) { // else no pace or one alone matters
      for (const int kind : links.kinds[at(rank)]) {
        waiting = std::max(
            waiting,
            cost::waiting_seconds(table, cluster_, links, strategy.tp, kind, rank, {first, last}));
      }
    }
    const cost::HostPace pace = cost::host_pace(stalls, waiting);
    const cost::StageState state = cost::stage_state(strategy, in_flight, microbatches, pace);
    return table.memory(first, last, state).total();
  };
  std::vector<int> result;
  int first = 0;
  for (int last = 0; last <= table.layers(); ++last) {
    while (first < last && bytes_of(first, last) > usable) {
      ++first;
    }
    result.push_back(first);
  }
  return result;
}

AssignmentProblem Pricer::problem_of(
    const cost::Strategy& strategy,
    const cost::LayerTable& table,
    const cost::PlacementLinks& links,
    const std::vector<double>& crowded) const {
  const int layers = table.layers();
  AssignmentProblem problem;
  problem.layers = layers;
  problem.stages = strategy.stages();
  problem.microbatches = strategy.microbatches(model_.global_batch_size);
  for (int k = 0; k < strategy.stages(); ++k) {
    const int rank = k % strategy.pp;
    const cost::StageLinks& stage = links.stages[at(rank)];
    std::vector<double> sends;
    for (int i = 0; i <= layers; ++i) {
      sends.push_back(
          cost::send_seconds(links, strategy, k, table.cut_bytes(i), table.returns_home()));
    }
    // A stage is as fast as its slowest device for its layers.
    std::vector<std::vector<double>> seconds;
    for (const int kind : slowest_somewhere(links.kinds[at(rank)], table)) {
      seconds.emplace_back();
      for (int i = 0; i <= layers; ++i) {
        const cost::PassSeconds tensor = table.tensor_seconds(0, i, stage);
        const cost::PassSeconds tail =
            k == 0 && i > 0 ? table.tail_tensor_seconds(stage) : cost::PassSeconds{};
        seconds.back().push_back(
            crowded[at(rank)] * table.compute_seconds(kind, 0, i) + tensor.forward +
            tensor.backward + tail.forward + tail.backward);
      }
    }
    problem.seconds.push_back(std::move(seconds.back()));
    seconds.pop_back();
    problem.other_seconds.push_back(std::move(seconds));
    if (k + 1 < strategy.stages()) {
      problem.send_seconds.push_back(std::move(sends));
    }
  }
  return problem;
}

std::optional<Candidate> Pricer::assigned_in_turns(
    const cost::Strategy& strategy,
    const cost::LayerTable& table) const {
  const cost::PlacementLinks links = cost::place(strategy, cluster_, options_.constants);
  AssignmentProblem problem = problem_of(strategy, table, links, crowding(strategy));
  const std::vector<double> usable = usable_bytes(links);
  std::optional<Candidate> best;
  const auto try_cuts = [&](const std::vector<int>& cuts) {
    Candidate candidate;
    candidate.strategy = strategy;
    candidate.strategy.boundaries = cuts;
    candidate.cost =
        cost::price(model_, cluster_, candidate.strategy, table, links, options_.constants);
    if (candidate.cost.fits() && (!best || candidate.cost.seconds < best->cost.seconds)) {
      best = std::move(candidate);
      return true;
    }
    return false;
  };
  // A stage may fill a rank, which leaves nothing to the others of the rank, or its share of it.
  for (const int parts : {1, strategy.stages_per_rank}) {
    std::vector<std::vector<int>> fits;
    for (int k = 0; k < strategy.stages(); ++k) {
      fits.push_back(
          first_that_fit(strategy, table, links, k, usable[at(k % strategy.pp)] / parts));
    }
    problem.first_that_fits = [&fits](int stage, int last) { return fits[at(stage)][at(last)]; };
    if (const Assignment assignment = assign_layers(problem); !assignment.boundaries.empty()) {
      try_cuts(assignment.boundaries);
    }
  }
  // Even layers, since a rank's stages together may be even where each is not.
  try_cuts(even_layers(table.layers(), strategy.stages()));
  // Single layers move over a cut as long as that is faster.
  constexpr int kMostSweeps = 8;
  bool better = best.has_value();
  for (int sweep = 0; better && sweep < kMostSweeps; ++sweep) {
    better = false;
    for (int cut = 1; cut < strategy.stages(); ++cut) {
      for (const int move : {-1, 1}) {
        std::vector<int> cuts = best->strategy.boundaries;
        cuts[at(cut)] += move;
        if (cuts[at(cut - 1)] < cuts[at(cut)] && cuts[at(cut)] < cuts[at(cut + 1)]) {
          better = try_cuts(cuts) || better;
        }
      }
    }
  }
  return best;
}

std::optional<Candidate> Pricer::assigned(
    cost::Strategy strategy,
    const cost::LayerTable& table,
    const std::vector<double>& crowded) const {
  const cost::PlacementLinks links = cost::place(strategy, cluster_, options_.constants);
  const int layers = table.layers();
  AssignmentProblem problem = problem_of(strategy, table, links, crowded);
  const std::vector<double> usable = usable_bytes(links);
  std::vector<std::vector<int>> fits;
  for (int k = 0; k < strategy.pp; ++k) {
    fits.push_back(first_that_fit(strategy, table, links, k, usable[at(k)]));
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

double Pricer::simulated_seconds(const cost::Strategy& strategy) const {
  return simulator::simulate(
             model_, cluster_, strategy, {.keep_events = false, .constants = options_.constants})
      .iteration_seconds;
}

} // namespace tessera::planner
