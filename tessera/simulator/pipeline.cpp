#include "tessera/simulator/pipeline.h"

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::simulator {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// Links 2n and 2n + 1: out of and into node n.
std::vector<double> network_links(
    const cost::Cluster& cluster,
    double efficiency) {
  std::vector<double> links;
  for (const cost::Node& node : cluster.nodes) {
    links.push_back(node.inter_bytes_per_s * efficiency);
    links.push_back(node.inter_bytes_per_s * efficiency);
  }
  return links;
}

} // namespace

Pipelines::Pipelines(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& strategy,
    const SimulationOptions& options)
    : model_(model),
      cluster_(cluster),
      strategy_(strategy),
      options_(options),
      table_(
          model,
          cluster,
          strategy.tp,
          strategy.microbatch_size,
          strategy.activation_checkpointing,
          options.constants),
      microbatches_(strategy.microbatches(model.global_batch_size)),
      node_of_device_(cluster.node_of_device()),
      network_(network_links(cluster, options.constants.link_efficiency)) {
  // A custom order says itself what is in flight.
  const int active = strategy.schedule == "custom" ? microbatches_
                     : strategy.active_microbatches > 0
                         ? strategy.active_microbatches
                         : strategy.pp;
  for (int d = 0; d < strategy.dp; ++d) {
    progress_.push_back({std::vector<State>(at(microbatches_))});
    schedules_.push_back(schedule::make_schedule(
        strategy.schedule, microbatches_, active, options.custom_order));
  }
  build_units(table_, cost::place(strategy, cluster, options.constants));
  replicas_left_.assign(at(strategy.pp), strategy.dp);
  stages_left_ = strategy.pp;
  reductions_left_ = strategy.pp;
  result_.memory_over_time.resize(at(strategy.pp));
}

int Pipelines::node_of(int stage, int replica, int tensor) const {
  const int rank = strategy_.rank(stage, replica, tensor);
  return node_of_device_[at(strategy_.device_of_rank[at(rank)])];
}

void Pipelines::build_units(
    const cost::LayerTable& table,
    const cost::PlacementLinks& links) {
  const cost::Constants& constants = options_.constants;
  for (int k = 0; k < strategy_.pp; ++k) {
    const int first = strategy_.boundaries[at(k)];
    const int last = strategy_.boundaries[at(k) + 1];
    double tensor = 0;
    if (strategy_.tp > 1) {
      const double n = strategy_.tp;
      tensor = 2 * (n - 1) *
               (table.reduced_bytes(first, last) / n /
                    links.stages[at(k)].tensor_bytes_per_s +
                table.reductions(first, last) * constants.link_latency_seconds);
    }
    // One of its two or three passes is the forward.
    const double tensor_forward =
        tensor / (strategy_.activation_checkpointing ? 3 : 2);
    for (int d = 0; d < strategy_.dp; ++d) {
      Unit unit;
      unit.backwards_left = microbatches_;
      for (int t = 0; t < strategy_.tp; ++t) {
        const int kind = cluster_.nodes[at(node_of(k, d, t))].kind;
        const double forward = table.forward_seconds(kind, first, last);
        const double all = table.compute_seconds(kind, first, last);
        unit.forward_seconds = std::max(unit.forward_seconds, forward);
        unit.backward_seconds = std::max(unit.backward_seconds, all - forward);
        const double bandwidth = cluster_.kinds[at(kind)].memory_bytes_per_s;
        if (bandwidth > 0) {
          unit.optimizer_seconds = std::max(
              unit.optimizer_seconds,
              table.parameters(first, last) *
                  constants.optimizer_traffic_bytes /
                  (bandwidth * constants.memory_efficiency) /
                  (strategy_.shard_optimizer_state ? strategy_.dp : 1));
        }
      }
      unit.forward_seconds += tensor_forward;
      unit.backward_seconds += tensor - tensor_forward;
      units_.push_back(std::move(unit));
    }
  }
}

void Pipelines::at_time(double time, std::function<void()> act) {
  events_.push({time, created_++, std::move(act)});
}

SimulationResult Pipelines::run() {
  for (int d = 0; d < strategy_.dp; ++d) {
    ask_schedule(d);
  }
  for (;;) {
    const double flow = network_.next_end();
    const double event = events_.empty() ? kUnlimited : events_.top().time;
    if (flow == kUnlimited && event == kUnlimited) {
      break;
    }
    if (flow <= event) {
      now_ = flow;
      const int id = network_.end_next();
      const auto act = std::move(on_flow_end_[at(id)]);
      act();
    } else {
      now_ = event;
      const auto act = events_.top().act;
      events_.pop();
      act();
    }
  }
  if (!stepped_) {
    throw ConfigError(
        "the schedule stands still: microbatches are left that it never "
        "starts; write another order or more active microbatches");
  }
  return result();
}

void Pipelines::ask_schedule(int replica) {
  schedule::Progress& progress = progress_[at(replica)];
  while (const auto action = schedules_[at(replica)]->next(progress)) {
    State& state = progress.states[at(action->microbatch)];
    if (action->phase == schedule::Phase::kForward) {
      state = State::kForward;
      unit(0, replica).forwards.insert(action->microbatch);
      try_start(0, replica);
    } else {
      state = State::kBackward;
      unit(strategy_.pp - 1, replica).backwards.insert(action->microbatch);
      try_start(strategy_.pp - 1, replica);
    }
  }
}

void Pipelines::try_start(int stage, int replica) {
  Unit& here = unit(stage, replica);
  if (here.busy || (here.forwards.empty() && here.backwards.empty())) {
    return;
  }
  const bool forward = here.backwards.empty();
  if (forward &&
      here.in_flight >= cost::in_flight(strategy_, stage, microbatches_)) {
    return; // the fixed order waits for a backward here
  }
  std::set<int>& ready = forward ? here.forwards : here.backwards;
  const int microbatch = *ready.begin();
  ready.erase(ready.begin());
  here.busy = true;
  if (forward) {
    ++here.in_flight;
    here.most_in_flight = std::max(here.most_in_flight, here.in_flight);
    sample_memory(stage, replica);
  }
  const double seconds = forward ? here.forward_seconds : here.backward_seconds;
  record(
      stage,
      replica,
      "stage " + std::to_string(stage),
      forward ? "forward" : "backward",
      microbatch,
      0,
      now_,
      now_ + seconds);
  busy_seconds_ += seconds * strategy_.tp;
  span_seconds_ = std::max(span_seconds_, now_ + seconds);
  at_time(now_ + seconds, [this, stage, replica, microbatch, forward] {
    finish(stage, replica, microbatch, forward);
  });
}

void Pipelines::finish(int stage, int replica, int microbatch, bool forward) {
  Unit& here = unit(stage, replica);
  here.busy = false;
  State& state = progress_[at(replica)].states[at(microbatch)];
  if (forward) {
    if (stage + 1 < strategy_.pp) {
      send(stage, stage + 1, replica, microbatch, true);
    } else {
      state = State::kReady;
    }
  } else {
    --here.in_flight;
    sample_memory(stage, replica);
    if (stage > 0) {
      send(stage, stage - 1, replica, microbatch, false);
    } else {
      state = State::kDone;
    }
    if (--here.backwards_left == 0 && --replicas_left_[at(stage)] == 0) {
      end_of_stage(stage);
    }
  }
  ask_schedule(replica);
  try_start(stage, replica);
}

void Pipelines::send(
    int from,
    int to,
    int replica,
    int microbatch,
    bool forward) {
  const double bytes =
      table_.cut_bytes(strategy_.boundaries[at(forward ? to : from)]);
  const double start = now_;
  // The streams of tensor-parallel ranks, joined where they share their links.
  auto streams = std::make_shared<int>(0);
  std::vector<std::pair<std::pair<int, int>, int>> routes;
  for (int t = 0; t < strategy_.tp; ++t) {
    const std::pair<int, int> route = {
        node_of(from, replica, t), node_of(to, replica, t)};
    if (!routes.empty() && routes.back().first == route) {
      ++routes.back().second;
    } else {
      routes.push_back({route, 1});
    }
  }
  *streams = static_cast<int>(routes.size());
  const auto arrive =
      [this, from, to, replica, microbatch, forward, bytes, start, streams] {
        if (--*streams > 0) {
          return;
        }
        at_time(
            now_ + options_.constants.link_latency_seconds,
            [this, from, to, replica, microbatch, forward, bytes, start] {
              record(
                  from,
                  replica,
                  forward ? "activation" : "gradient",
                  "comm",
                  microbatch,
                  1,
                  start,
                  now_,
                  bytes);
              Unit& there = unit(to, replica);
              (forward ? there.forwards : there.backwards).insert(microbatch);
              try_start(to, replica);
            });
      };
  for (const auto& [route, weight] : routes) {
    const auto& [source, target] = route;
    std::vector<int> links;
    double limit = kUnlimited;
    if (source == target) {
      limit = cluster_.nodes[at(source)].intra_bytes_per_s *
              options_.constants.link_efficiency;
    } else {
      links = {2 * source, 2 * target + 1};
    }
    on_flow_end_.push_back(arrive);
    network_.start(now_, bytes, links, weight, limit);
  }
}

SimulationResult simulate(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& strategy,
    const SimulationOptions& options) {
  cost::validate(
      strategy,
      cluster.device_count(),
      static_cast<int>(model.layers.size()),
      model.global_batch_size);
  return Pipelines(model, cluster, strategy, options).run();
}

} // namespace tessera::simulator
