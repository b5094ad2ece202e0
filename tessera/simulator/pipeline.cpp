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

// Returns the links: 2n and 2n + 1 lead out of and into node n. After all of these
// comes one for the cores of each node, in seconds of computation per second.
std::vector<double> network_links(const cost::Cluster& cluster, double efficiency) {
  std::vector<double> links;
  for (const cost::Node& node : cluster.nodes) {
    links.push_back(node.inter_bytes_per_s * efficiency);
    links.push_back(node.inter_bytes_per_s * efficiency);
  }
  for (const cost::Node& node : cluster.nodes) {
    links.push_back(node.cores > 0 ? node.cores : kUnlimited);
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
      table_(model, cluster, strategy, options.constants),
      returns_home_(model.returns_home && strategy.pp > 1),
      microbatches_(strategy.microbatches(model.global_batch_size)),
      node_of_device_(cluster.node_of_device()),
      network_(network_links(cluster, options.constants.link_efficiency)) {
  // A custom order decides itself how many microbatches are in flight.
  const int active = strategy.schedule == cost::Schedule::kCustom ? microbatches_
                     : strategy.active_microbatches > 0           ? strategy.active_microbatches
                                                                  : strategy.pp;
  for (int d = 0; d < strategy.dp; ++d) {
    progress_.push_back({std::vector<State>(at(microbatches_))});
    schedules_.push_back(schedule::make_schedule(
        std::string(text_of(strategy.schedule)), microbatches_, active, options.custom_order));
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

void Pipelines::build_units(const cost::LayerTable& table, const cost::PlacementLinks& links) {
  const cost::Constants& constants = options_.constants;
  for (int k = 0; k < strategy_.pp; ++k) {
    const int first = strategy_.boundaries[at(k)];
    const int last = strategy_.boundaries[at(k) + 1];
    const cost::StageLinks& place = links.stages[at(k)];
    const cost::PassSeconds tensor =
        table.tensor_seconds(first, last, place.tensor_nodes, place.tensor_bytes_per_s);
    const cost::PassSeconds tail_tensor =
        k == 0 ? table.tail_tensor_seconds(place.tensor_nodes, place.tensor_bytes_per_s)
               : cost::PassSeconds{};
    for (int d = 0; d < strategy_.dp; ++d) {
      Unit unit;
      unit.backwards_left = microbatches_;
      for (int t = 0; t < strategy_.tp; ++t) {
        const int kind = cluster_.nodes[at(node_of(k, d, t))].kind;
        const double forward = table.forward_seconds(kind, first, last);
        const double all = table.compute_seconds(kind, first, last);
        unit.layers.forward = std::max(unit.layers.forward, forward);
        unit.layers.backward = std::max(unit.layers.backward, all - forward);
        if (returns_home_ && k == 0) {
          unit.tail = table.tail_seconds(kind);
        }
        const double bandwidth = cluster_.kinds[at(kind)].memory_bytes_per_s;
        if (bandwidth > 0) {
          unit.optimizer_seconds = std::max(
              unit.optimizer_seconds,
              table.parameters(first, last) * constants.optimizer_traffic_bytes /
                  (bandwidth * constants.memory_efficiency) /
                  (strategy_.shard_optimizer_state ? strategy_.dp : 1));
        }
      }
      unit.layers.forward -= unit.tail.forward;
      unit.layers.backward -= unit.tail.backward;
      unit.exchange = tensor;
      if (returns_home_) {
        unit.tail_exchange = tail_tensor;
      } else {
        unit.exchange.forward += tail_tensor.forward;
        unit.exchange.backward += tail_tensor.backward;
      }
      unit.node = node_of(k, d, 0);
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
    double event = kUnlimited;
    if (!events_.empty()) {
      event = events_.top().time;
    }
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
    Task task;
    task.microbatch = action->microbatch;
    task.forward = action->phase == schedule::Phase::kForward;
    if (task.forward) {
      state = State::kForward;
      make_ready(0, replica, task);
    } else {
      state = State::kBackward;
      task.part = returns_home_ ? Part::kTail : Part::kLayers;
      make_ready(returns_home_ ? 0 : strategy_.pp - 1, replica, task);
    }
  }
}

void Pipelines::make_ready(int stage, int replica, const Task& task) {
  unit(stage, replica).ready.insert(task);
  try_start(stage, replica);
}

double Pipelines::seconds_of(const Unit& unit, const Task& task) const {
  switch (task.part) {
    case Part::kLayers:
      return task.forward ? unit.layers.forward : unit.layers.backward;
    case Part::kTail:
      return task.forward ? unit.tail.forward : unit.tail.backward;
    case Part::kRelay:
      return options_.constants.link_latency_seconds; // stage 0 receives and forwards
  }
  return 0;
}

double Pipelines::exchange_seconds_of(const Unit& unit, const Task& task) {
  switch (task.part) {
    case Part::kLayers:
      return task.forward ? unit.exchange.forward : unit.exchange.backward;
    case Part::kTail:
      return task.forward ? unit.tail_exchange.forward : unit.tail_exchange.backward;
    case Part::kRelay:
      break;
  }
  return 0;
}

void Pipelines::try_start(int stage, int replica) {
  Unit& here = unit(stage, replica);
  if (here.busy || here.ready.empty()) {
    return;
  }
  const Task task = *here.ready.begin();
  const bool begins = task.forward && task.part == Part::kLayers;
  if (begins && here.in_flight >= cost::in_flight(strategy_, stage, microbatches_)) {
    return; // no further microbatch before a backward ends
  }
  here.ready.erase(here.ready.begin());
  here.busy = true;
  if (begins) {
    ++here.in_flight;
    here.most_in_flight = std::max(here.most_in_flight, here.in_flight);
    sample_memory(stage, replica);
  }
  const double seconds = seconds_of(here, task);
  const double start = now_;
  const double exchange = exchange_seconds_of(here, task);
  const auto end = [this, stage, replica, task, start] { finish(stage, replica, task, start); };
  if (cluster_.nodes[at(here.node)].cores > 0) {
    // Ranks that compute at the same time share the cores of their host.
    const int cores = 2 * static_cast<int>(cluster_.nodes.size()) + here.node;
    // Exchanges take their time after that; they were measured with all ranks at work.
    on_flow_end_.emplace_back([this, end, exchange] {
      if (exchange > 0) {
        at_time(now_ + exchange, end);
      } else {
        end();
      }
    });
    network_.start(now_, seconds, {cores}, strategy_.tp, 1);
  } else {
    at_time(now_ + seconds + exchange, end);
  }
}

void Pipelines::finish(int stage, int replica, const Task& task, double start) {
  unit(stage, replica).busy = false;
  if (task.part != Part::kRelay) {
    record(
        stage,
        replica,
        "stage " + std::to_string(stage),
        task.forward ? "forward" : "backward",
        task.microbatch,
        0,
        start,
        now_);
    busy_seconds_ += (now_ - start) * strategy_.tp;
    span_seconds_ = std::max(span_seconds_, now_);
  }
  if (task.forward) {
    after_forward(stage, replica, task);
  } else {
    after_backward(stage, replica, task);
  }
  ask_schedule(replica);
  try_start(stage, replica);
}

void Pipelines::after_forward(int stage, int replica, const Task& task) {
  const int last = strategy_.pp - 1;
  Task next = {.forward = true, .microbatch = task.microbatch};
  if (task.part == Part::kRelay) {
    send(0, task.target, replica, task.target, next);
  } else if (task.part == Part::kTail || (stage == last && !returns_home_)) {
    progress_[at(replica)].states[at(task.microbatch)] = State::kReady;
  } else if (stage == last) {
    next.part = Part::kTail;
    send(stage, 0, replica, strategy_.pp, next);
  } else if (returns_home_ && stage > 0) {
    next.part = Part::kRelay;
    next.target = stage + 1;
    send(stage, 0, replica, stage + 1, next);
  } else {
    send(stage, stage + 1, replica, stage + 1, next);
  }
}

void Pipelines::after_backward(int stage, int replica, const Task& task) {
  Task next = {.forward = false, .microbatch = task.microbatch};
  if (task.part == Part::kRelay) {
    send(0, task.target, replica, task.target + 1, next);
    return;
  }
  if (task.part == Part::kTail) {
    send(0, strategy_.pp - 1, replica, strategy_.pp, next);
    return;
  }
  Unit& here = unit(stage, replica);
  --here.in_flight;
  sample_memory(stage, replica);
  if (stage == 0) {
    progress_[at(replica)].states[at(task.microbatch)] = State::kDone;
  } else if (returns_home_ && stage > 1) {
    next.part = Part::kRelay;
    next.target = stage - 1;
    send(stage, 0, replica, stage, next);
  } else {
    send(stage, stage - 1, replica, stage, next);
  }
  if (--here.backwards_left == 0 && --replicas_left_[at(stage)] == 0) {
    end_of_stage(stage);
  }
}

void Pipelines::send(int from, int to, int replica, int cut, const Task& task) {
  const double bytes = table_.cut_bytes(strategy_.boundaries[at(cut)]);
  const double start = now_;
  // Consecutive tensor-parallel ranks on the same two nodes send as one flow.
  auto streams = std::make_shared<int>(0);
  std::vector<std::pair<std::pair<int, int>, int>> routes;
  for (int t = 0; t < strategy_.tp; ++t) {
    const std::pair<int, int> route = {node_of(from, replica, t), node_of(to, replica, t)};
    if (!routes.empty() && routes.back().first == route) {
      ++routes.back().second;
    } else {
      routes.emplace_back(route, 1);
    }
  }
  *streams = static_cast<int>(routes.size());
  const auto arrive = [this, from, to, replica, task, bytes, start, streams] {
    if (--*streams > 0) {
      return;
    }
    at_time(
        now_ + options_.constants.link_latency_seconds,
        [this, from, to, replica, task, bytes, start] {
          record(
              from,
              replica,
              task.forward ? "activation" : "gradient",
              "comm",
              task.microbatch,
              1,
              start,
              now_,
              bytes);
          make_ready(to, replica, task);
        });
  };
  for (const auto& [route, weight] : routes) {
    const auto& [source, target] = route;
    std::vector<int> links;
    double limit = kUnlimited;
    if (source == target) {
      limit = cluster_.nodes[at(source)].intra_bytes_per_s * options_.constants.link_efficiency;
    } else {
      links = {2 * source, 2 * target + 1};
      limit = cluster_.between(source, target) * options_.constants.link_efficiency;
    }
    on_flow_end_.emplace_back(arrive);
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
