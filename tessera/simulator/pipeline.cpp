#include "tessera/simulator/pipeline.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera::simulator {

namespace {

// Returns the links of the network: those of cores are in seconds of computation per second.
std::vector<double>
network_links(const cost::Cluster& cluster, const cost::NodeLinks& pairs, double efficiency) {
  std::vector<double> links;
  for (const cost::Node& node : cluster.nodes) {
    links.push_back(node.inter_bytes_per_s * efficiency);
    links.push_back(node.inter_bytes_per_s * efficiency);
  }
  for (const cost::Node& node : cluster.nodes) {
    links.push_back(node.cores > 0 ? node.cores : kUnlimited);
  }
  for (int pair = 0; pair < pairs.size(); ++pair) {
    links.push_back(pairs.bytes_per_s(pair) * efficiency);
    links.push_back(pairs.bytes_per_s(pair) * efficiency);
  }
  for (const cost::Node& node : cluster.nodes) {
    const double inside = node.count > 1 ? node.intra_bytes_per_s * efficiency : kUnlimited;
    links.insert(links.end(), 2 * at(node.count), inside);
  }
  return links;
}

void validate(const SimulationOptions& options, int devices) {
  if (!std::isfinite(options.jitter) || options.jitter < 0) {
    throw ConfigError(str("jitter: found ", options.jitter, "; write 0 or more"));
  }
  for (const auto& [device, factor] : options.slow_devices) {
    if (device < 0 || device >= devices || !std::isfinite(factor) || factor <= 0) {
      throw ConfigError(
          str("slow device ",
              device,
              ": found ",
              factor,
              " times; write a factor of more than 0 for a device from 0 to ",
              devices - 1));
    }
  }
}

cost::PassSeconds slower(const cost::PassSeconds& a, const cost::PassSeconds& b) {
  return {std::max(a.forward, b.forward), std::max(a.backward, b.backward)};
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
      places_(strategy, cluster),
      network_(network_links(cluster, places_.links(), options.constants.link_efficiency)),
      random_(options.seed) {
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
  progressed_.assign(at(strategy.dp), 1);
  replicas_left_.assign(at(strategy.pp), strategy.dp);
  stages_left_ = strategy.pp;
  plan_reductions();
  result_.memory_over_time.resize(at(strategy.pp));
}

int Pipelines::cores_link(int node) const {
  return 2 * static_cast<int>(cluster_.nodes.size()) + node;
}

int Pipelines::pair_link(int pair, bool descending) const {
  return 3 * static_cast<int>(cluster_.nodes.size()) + 2 * pair + (descending ? 1 : 0);
}

int Pipelines::device_link(int rank, bool receives) const {
  const int device = strategy_.device_of_rank[at(rank)];
  return pair_link(places_.links().size(), false) + 2 * device + (receives ? 1 : 0);
}

// Adds a rank to those on its node, which are of one kind and wait for the slowest of them.
void Pipelines::add_share(const Share& share, std::vector<Share>& shares) {
  for (Share& known : shares) {
    if (known.node == share.node) {
      ++known.ranks;
      known.layers = slower(known.layers, share.layers);
      known.tail = slower(known.tail, share.tail);
      return;
    }
  }
  shares.push_back(share);
}

void Pipelines::build_units(const cost::LayerTable& table, const cost::PlacementLinks& links) {
  const cost::Constants& constants = options_.constants;
  for (int k = 0; k < strategy_.pp; ++k) {
    const int first = strategy_.boundaries[at(k)];
    const int last = strategy_.boundaries[at(k) + 1];
    const cost::StageLinks& place = links.stages[at(k)];
    const cost::PassSeconds tensor = table.tensor_seconds(first, last, place);
    const cost::PassSeconds tail_tensor =
        k == 0 ? table.tail_tensor_seconds(place) : cost::PassSeconds{};
    bool ahead = !cluster_.stalls();
    for (const int kind : links.kinds[at(k)]) {
      ahead &= cost::waiting_seconds(table, cluster_, links, strategy_, kind, k) == 0;
    }
    host_runs_ahead_.push_back(ahead ? 1 : 0);
    for (int d = 0; d < strategy_.dp; ++d) {
      Unit unit;
      unit.backwards_left = microbatches_;
      for (int t = 0; t < strategy_.tp; ++t) {
        const int node = places_.node(k, d, t);
        const int kind = cluster_.nodes[at(node)].kind;
        Share share = {.node = node, .ranks = 1};
        const double slowed = slowdown(k, d, t);
        const double forward = table.forward_seconds(kind, first, last);
        share.layers = {
            forward,
            table.compute_seconds(kind, first, last) - forward +
                cost::waiting_seconds(table, cluster_, links, strategy_, kind, k)};
        if (returns_home_ && k == 0) {
          share.tail = table.tail_seconds(kind);
          share.layers.forward -= share.tail.forward;
          share.layers.backward -= share.tail.backward;
        }
        for (cost::PassSeconds* pass : {&share.layers, &share.tail}) {
          pass->forward *= slowed;
          pass->backward *= slowed;
        }
        unit.layers = slower(unit.layers, share.layers);
        unit.tail = slower(unit.tail, share.tail);
        add_share(share, unit.shares);
        const double parameters = table.parameters(first, last);
        unit.optimizer_seconds = std::max(
            unit.optimizer_seconds,
            cost::optimizer_seconds(
                parameters,
                table.optimizer_bytes(parameters),
                cluster_.kinds[at(kind)],
                strategy_,
                constants));
      }
      unit.exchange = tensor;
      if (returns_home_) {
        unit.tail_exchange = tail_tensor;
      } else {
        unit.exchange.forward += tail_tensor.forward;
        unit.exchange.backward += tail_tensor.backward;
      }
      units_.push_back(std::move(unit));
    }
  }
}

double Pipelines::slowdown(int stage, int replica, int tensor) const {
  const int device = strategy_.device_of_rank[at(strategy_.rank(stage, replica, tensor))];
  const auto found = options_.slow_devices.find(device);
  return found == options_.slow_devices.end() ? 1 : found->second;
}

double Pipelines::drawn_factor(int ranks) {
  if (options_.jitter == 0) {
    return 1;
  }
  double most = normal_(random_);
  for (int i = 1; i < ranks; ++i) {
    most = std::max(most, normal_(random_));
  }
  return std::exp(options_.jitter * most - options_.jitter * options_.jitter / 2);
}

void Pipelines::at_time(double time, std::function<void()> act) {
  events_.push_back({time, created_++, std::move(act)});
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

std::function<void()> Pipelines::take_event() {
  std::pop_heap(events_.begin(), events_.end(), std::greater<>());
  auto act = std::move(events_.back().act);
  events_.pop_back();
  return act;
}

void Pipelines::flow(
    double bytes,
    std::vector<int> links,
    double weight,
    double limit,
    std::function<void()> then) {
  const std::size_t id = at(network_.start(now_, bytes, std::move(links), weight, limit));
  if (id >= on_flow_end_.size()) {
    on_flow_end_.resize(id + 1);
  }
  on_flow_end_[id] = std::move(then);
}

SimulationResult Pipelines::run() {
  for (int d = 0; d < strategy_.dp; ++d) {
    ask_schedule(d);
  }
  for (;;) {
    const double event = events_.empty() ? kUnlimited : events_.front().time;
    if (event == now_ && !network_.ends_at(now_)) {
      take_event()(); // rates follow once for all that happens now
      continue;
    }
    const double flow = network_.next_end();
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
      take_event()();
    }
  }
  if (!stepped_) {
    throw ConfigError(
        "the schedule stands still: microbatches are left that it never "
        "starts; write another order or more active microbatches");
  }
  return result();
}

void Pipelines::set_state(int replica, int microbatch, State state) {
  progress_[at(replica)].states[at(microbatch)] = state;
  progressed_[at(replica)] = 1;
}

void Pipelines::ask_schedule(int replica) {
  if (progressed_[at(replica)] == 0) {
    return;
  }
  while (const auto action = schedules_[at(replica)]->next(progress_[at(replica)])) {
    Task task;
    task.microbatch = action->microbatch;
    task.forward = action->phase == schedule::Phase::kForward;
    if (task.forward) {
      set_state(replica, task.microbatch, State::kForward);
      make_ready(0, replica, task);
    } else {
      set_state(replica, task.microbatch, State::kBackward);
      task.part = returns_home_ ? Part::kTail : Part::kLayers;
      make_ready(returns_home_ ? 0 : strategy_.pp - 1, replica, task);
    }
  }
  progressed_[at(replica)] = 0;
}

void Pipelines::make_ready(int stage, int replica, const Task& task) {
  unit(stage, replica).ready.insert(task);
  try_start(stage, replica);
}

template <typename Ranks>
double Pipelines::seconds_of(const Ranks& ranks, const Task& task) const {
  switch (task.part) {
    case Part::kLayers:
      return task.forward ? ranks.layers.forward : ranks.layers.backward;
    case Part::kTail:
      return task.forward ? ranks.tail.forward : ranks.tail.backward;
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
  }
  if (task.part != Part::kRelay) {
    sample_memory(stage, replica, true);
  }
  const double start = now_;
  const double seconds = compute(
      here, task, [this, stage, replica, task, start] { finish(stage, replica, task, start); });
  if (!task.forward && task.part == Part::kLayers && here.backwards_left == 1 && seconds > 0) {
    announce_buckets(stage, replica, seconds);
  }
}

double Pipelines::compute(const Unit& unit, const Task& task, const std::function<void()>& then) {
  const double exchange = exchange_seconds_of(unit, task);
  const auto shares_cores = [this](const Share& share) {
    return cluster_.nodes[at(share.node)].cores > 0;
  };
  if (std::none_of(unit.shares.begin(), unit.shares.end(), shares_cores)) {
    const double factor = task.part == Part::kRelay ? 1 : drawn_factor(strategy_.tp);
    const double seconds = seconds_of(unit, task) * factor + exchange;
    at_time(now_ + seconds, then);
    return seconds;
  }
  // Exchanges follow the computation; measured ones were measured with all ranks at work.
  auto left = std::make_shared<std::size_t>(unit.shares.size());
  const auto computed = [this, left, exchange, then] {
    if (--*left > 0) {
      return;
    }
    if (exchange > 0) {
      at_time(now_ + exchange, then);
    } else {
      then();
    }
  };
  for (const Share& share : unit.shares) {
    const double factor = task.part == Part::kRelay ? 1 : drawn_factor(share.ranks);
    const double seconds = seconds_of(share, task) * factor;
    if (shares_cores(share)) {
      // Ranks that compute at the same time share the cores of their host.
      flow(seconds, {cores_link(share.node)}, share.ranks, 1, computed);
    } else {
      at_time(now_ + seconds, computed);
    }
  }
  return 0;
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
    sample_memory(stage, replica, false);
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
    set_state(replica, task.microbatch, State::kReady);
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
  sample_memory(stage, replica, false);
  if (stage == 0) {
    set_state(replica, task.microbatch, State::kDone);
  } else if (returns_home_ && stage > 1) {
    next.part = Part::kRelay;
    next.target = stage - 1;
    send(stage, 0, replica, stage, next);
  } else {
    send(stage, stage - 1, replica, stage, next);
  }
  if (--here.backwards_left > 0) {
    return;
  }
  const int buckets = static_cast<int>(reductions_[at(stage)].replicas_left.size());
  for (int bucket = here.announced; bucket < buckets; ++bucket) {
    bucket_is_full(stage, bucket);
  }
  if (--replicas_left_[at(stage)] == 0) {
    end_of_stage();
  }
}

void Pipelines::send(int from, int to, int replica, int cut, const Task& task) {
  const double bytes = table_.cut_bytes(strategy_.boundaries[at(cut)]);
  const double start = now_;
  // Consecutive tensor-parallel ranks on the same two nodes send as one flow, but inside a node,
  // where each of them has its own links.
  auto streams = std::make_shared<int>(0);
  struct Route {
    int source = 0; // virtual ranks
    int target = 0;
    int ranks = 1;
  };
  std::vector<Route> routes;
  for (int t = 0; t < strategy_.tp; ++t) {
    const Route route = {strategy_.rank(from, replica, t), strategy_.rank(to, replica, t)};
    const int node = places_.node(route.source);
    const int other = places_.node(route.target);
    if (!routes.empty() && node != other && places_.node(routes.back().source) == node &&
        places_.node(routes.back().target) == other) {
      ++routes.back().ranks;
    } else {
      routes.push_back(route);
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
  for (const Route& route : routes) {
    const int source = places_.node(route.source);
    const int target = places_.node(route.target);
    std::vector<int> links;
    double limit = kUnlimited;
    if (source == target) {
      links = {device_link(route.source, false), device_link(route.target, true)};
    } else {
      links = {out_link(source), in_link(target)};
      limit = options_.constants.link_efficiency *
              std::min(
                  cost::stream_bytes_per_s(cluster_.nodes[at(source)]),
                  cost::stream_bytes_per_s(cluster_.nodes[at(target)]));
      if (const int pair = places_.links().between(source, target); pair >= 0) {
        links.push_back(pair_link(pair, source > target));
      }
    }
    flow(bytes, std::move(links), route.ranks, limit, arrive);
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
  validate(options, cluster.device_count());
  return Pipelines(model, cluster, strategy, options).run();
}

} // namespace tessera::simulator
