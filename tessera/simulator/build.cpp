// What the pipelines are made of: stages, devices, ways of messages, and replicas that are alike.

#include <algorithm>
#include <iterator>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/simulator/pipeline.h"

namespace tessera::simulator {

namespace {

// Returns the links of the network: those of cores are in computations per second.
std::vector<double>
network_links(const cost::Cluster& cluster, const cost::NodeLinks& pairs, double efficiency) {
  std::vector<double> links;
  for (const cost::Node& node : cluster.nodes) {
    links.push_back(node.inter_bytes_per_s * efficiency);
    links.push_back(node.inter_bytes_per_s * efficiency);
  }
  for (const cost::Node& node : cluster.nodes) {
    links.push_back(node.cores > 0 ? node.cores * kComputation : kUnlimited);
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

// Joins uses of one link of a path: its streams go over it twice.
std::vector<LinkUse> joined(const std::vector<LinkUse>& uses) {
  std::vector<LinkUse> result;
  for (const LinkUse& use : uses) {
    const auto same = std::find_if(
        result.begin(), result.end(), [&](const LinkUse& known) { return known.link == use.link; });
    if (same == result.end()) {
      result.push_back(use);
    } else {
      same->streams += use.streams;
    }
  }
  return result;
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
      run_rank_(run_ranks(strategy)),
      returns_home_(model.returns_home && strategy.pp > 1),
      relays_(cost::has_relays(strategy, model.returns_home)),
      microbatches_(strategy.microbatches(model.global_batch_size)),
      places_(strategy, cluster),
      simulated_(at(strategy.dp)),
      stands_for_(at(strategy.dp), 1),
      network_(network_links(cluster, places_.links(), options.constants.link_efficiency)),
      random_(options.seed),
      busy_seconds_(at(strategy.dp), 0) {
  for (int d = 0; d < strategy.dp; ++d) {
    const int samples = strategy.microbatch_of(d);
    if (tables_.count(samples) == 0) {
      cost::Strategy even = strategy;
      even.microbatch_size = samples;
      tables_.emplace(samples, cost::LayerTable(model, cluster, even, options.constants));
    }
  }
  // A custom order decides itself how many microbatches are in flight.
  const bool custom = strategy.schedule == cost::Schedule::kCustom;
  const bool alone = cost::runs_one_at_a_time(strategy);
  const int active = custom                             ? microbatches_
                     : alone                            ? 1
                     : strategy.active_microbatches > 0 ? strategy.active_microbatches
                                                        : strategy.pp;
  for (int d = 0; d < strategy.dp; ++d) {
    progress_.push_back({std::vector<State>(at(microbatches_))});
    schedules_.push_back(schedule::make_schedule(
        std::string(text_of(alone ? cost::Schedule::kInterleaved : strategy.schedule)),
        microbatches_,
        active,
        options.custom_order));
  }
  build_stages(cost::place(strategy, cluster, options.constants));
  build_paths();
  std::iota(simulated_.begin(), simulated_.end(), 0);
  alike_.first = simulated_;
  if (options.alike_once && !options.keep_events && options.jitter == 0) {
    join_alike(network_links(cluster, places_.links(), options.constants.link_efficiency));
  }
  result_.simulated_replicas = static_cast<int>(simulated_.size());
  progressed_.assign(at(strategy.dp), 1);
  replicas_left_.assign(at(strategy.stages()), strategy.dp);
  stages_left_ = strategy.stages();
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

Pipelines::Passes Pipelines::slower(const Passes& one, const Passes& other) {
  return {
      std::max(one.forward, other.forward),
      std::max(one.backward, other.backward),
      std::max(one.deferred, other.deferred)};
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

void Pipelines::build_stages(const cost::PlacementLinks& links) {
  for (int stage = 0; stage < strategy_.stages(); ++stage) {
    double waiting = 0;
    for (const int kind : links.kinds[at(rank_of(stage))]) {
      for (const auto& [samples, table] : tables_) {
        waiting = std::max(
            waiting, cost::waiting_seconds(table, cluster_, links, strategy_, kind, stage));
      }
    }
    host_pace_.push_back(cost::host_pace(cost::stalls(cluster_, links), waiting));
    most_in_flight_.push_back(cost::in_flight(strategy_, stage, microbatches_));
    for (int d = 0; d < strategy_.dp; ++d) {
      stages_.push_back(build_stage(links, stage, d));
    }
  }
  units_.resize(at(strategy_.pp * strategy_.dp));
}

Pipelines::StageRun
Pipelines::build_stage(const cost::PlacementLinks& links, int stage, int replica) const {
  const int rank = rank_of(stage);
  const int first = first_layer(stage);
  const int last = last_layer(stage);
  const cost::StageLinks& place = links.stages[at(rank)];
  const cost::LayerTable& table = table_of(replica);
  const bool holds_tail = returns_home_ && stage == 0;
  StageRun run;
  run.backwards_left = microbatches_;
  for (int t = 0; t < strategy_.tp; ++t) {
    const int node = places_.node(rank, replica, t);
    const int kind = cluster_.nodes[at(node)].kind;
    Share share = {.node = node, .ranks = 1};
    const double slowed = slowdown(rank, replica, t);
    const double forward = table.forward_seconds(kind, first, last);
    share.layers = {
        forward,
        table.compute_seconds(kind, first, last) - forward +
            cost::waiting_seconds(table, cluster_, links, strategy_, kind, stage)};
    if (holds_tail) {
      const auto [tail_forward, tail_backward] = table.tail_seconds(kind);
      share.layers.forward -= tail_forward;
      share.layers.backward -= tail_backward;
      share.tail = {tail_forward, tail_backward, table.tail_deferred_seconds(kind)};
      share.tail.backward -= share.tail.deferred;
    }
    if (stage > 0) { // nobody waits for the first one
      share.layers.deferred = table.deferred_seconds(kind, first, last);
      share.layers.backward -= share.layers.deferred;
    }
    for (Passes* pass : {&share.layers, &share.tail}) {
      pass->forward *= slowed;
      pass->backward *= slowed;
      pass->deferred *= slowed;
    }
    run.layers = slower(run.layers, share.layers);
    run.tail = slower(run.tail, share.tail);
    add_share(share, run.shares);
    run.on_cores |= shares_cores(share);
    const double parameters = table.parameters(first, last);
    run.optimizer_seconds = std::max(
        run.optimizer_seconds,
        cost::optimizer_seconds(
            parameters,
            table.optimizer_bytes(parameters),
            cluster_.kinds[at(kind)],
            strategy_,
            options_.constants));
  }
  run.exchange = table.tensor_seconds(first, last, place);
  if (stage == 0) {
    const cost::PassSeconds tail = table.tail_tensor_seconds(place);
    if (returns_home_) {
      run.tail_exchange = tail;
    } else {
      run.exchange.forward += tail.forward;
      run.exchange.backward += tail.backward;
    }
  }
  return run;
}

double Pipelines::slowdown(int rank, int replica, int tensor) const {
  const int device = strategy_.device_of_rank[at(strategy_.rank(rank, replica, tensor))];
  const auto found = options_.slow_devices.find(device);
  return found == options_.slow_devices.end() ? 1 : found->second;
}

bool Pipelines::shares_cores(const Share& share) const {
  return cluster_.nodes[at(share.node)].cores > 0;
}

// Returns the ways that messages of a rank go.
std::vector<Pipelines::Way> Pipelines::ways_of(int rank) const {
  if (strategy_.pp == 1 || (relays_ && rank == 0)) {
    return {};
  }
  if (relays_) {
    return {kHome, kFromHome};
  }
  const bool in_a_circle = strategy_.stages_per_rank > 1 || returns_home_;
  std::vector<Way> ways;
  if (in_a_circle || rank + 1 < strategy_.pp) {
    ways.push_back(kNext);
  }
  if (in_a_circle || rank > 0) {
    ways.push_back(kPrevious);
  }
  return ways;
}

void Pipelines::build_paths() {
  const int pp = strategy_.pp;
  for (int rank = 0; rank < pp; ++rank) {
    for (int d = 0; d < strategy_.dp; ++d) {
      Unit& here = unit(rank, d);
      for (const Share& share : stage_run(rank, d).shares) {
        here.cores.push_back(
            {.uses = {{cores_link(share.node), share.ranks}}, .limit = kComputation});
      }
      for (const Way way : ways_of(rank)) {
        const int from = way == kFromHome ? 0 : rank;
        const int to = way == kHome       ? 0
                       : way == kFromHome ? rank
                       : way == kNext     ? (rank + 1) % pp
                                          : (rank + pp - 1) % pp;
        here.ways[way] = paths(from, to, d);
        here.latencies[way] = latency(from, to, d);
      }
    }
    replica_flows_.push_back(flows_of(replica_groups(rank)));
    rank_flows_.push_back(flows_of({places_.stage(rank)}));
  }
}

std::vector<Pipelines::Path> Pipelines::paths(int from, int to, int replica) const {
  std::vector<Path> paths;
  int last_source = -1; // nodes of the last path
  int last_target = -1;
  for (int t = 0; t < strategy_.tp; ++t) {
    const int sender = strategy_.rank(from, replica, t);
    const int receiver = strategy_.rank(to, replica, t);
    const int source = places_.node(sender);
    const int target = places_.node(receiver);
    if (source != target && source == last_source && target == last_target) {
      for (LinkUse& use : paths.back().uses) {
        ++use.streams;
      }
      continue;
    }
    last_source = source;
    last_target = target;
    if (source == target) {
      paths.push_back(
          {.uses = {{device_link(sender, false)}, {device_link(receiver, true)}},
           .limit = kUnlimited});
      continue;
    }
    Path path{.uses = {{out_link(source)}, {in_link(target)}}};
    path.limit = options_.constants.link_efficiency *
                 std::min(
                     cost::stream_bytes_per_s(cluster_.nodes[at(source)]),
                     cost::stream_bytes_per_s(cluster_.nodes[at(target)]));
    for (const auto& [pair, second] : places_.links().between(source, target)) {
      path.uses.push_back({pair_link(pair, second)});
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

// Returns the latency of the slowest of a message's streams.
double Pipelines::latency(int from, int to, int replica) const {
  double longest = 0;
  for (int t = 0; t < strategy_.tp; ++t) {
    longest = std::max(
        longest,
        cost::message_latency(
            places_.links(),
            places_.node(from, replica, t),
            places_.node(to, replica, t),
            options_.constants));
  }
  return longest;
}

ReplicaWork Pipelines::work_of(int replica) const {
  ReplicaWork work;
  work.figures.push_back(strategy_.microbatch_of(replica)); // what messages and memory follow
  const auto add_seconds = [&work](const cost::PassSeconds& pass) {
    work.figures.insert(work.figures.end(), {pass.forward, pass.backward});
  };
  const auto add_path = [&work](const Path& path) {
    work.figures.insert(work.figures.end(), {path.limit, static_cast<double>(path.uses.size())});
    work.uses.insert(work.uses.end(), path.uses.begin(), path.uses.end());
  };
  const auto add_passes = [&work](const Passes& passes) {
    work.figures.insert(work.figures.end(), {passes.forward, passes.backward, passes.deferred});
  };
  for (int stage = 0; stage < strategy_.stages(); ++stage) {
    const StageRun& run = stage_run(stage, replica);
    add_passes(run.layers);
    add_passes(run.tail);
    add_seconds(run.exchange);
    add_seconds(run.tail_exchange);
    for (const Share& share : run.shares) {
      add_passes(share.layers);
      add_passes(share.tail);
      work.figures.insert(
          work.figures.end(), {static_cast<double>(share.ranks), shares_cores(share) ? 1.0 : 0.0});
    }
  }
  for (int rank = 0; rank < strategy_.pp; ++rank) {
    const Unit& one = units_[at(unit_of(rank, replica))];
    for (const Path& path : one.cores) {
      add_path(path);
    }
    work.figures.insert(work.figures.end(), std::begin(one.latencies), std::end(one.latencies));
    for (const std::vector<Path>& way : one.ways) {
      work.figures.push_back(static_cast<double>(way.size()));
      std::for_each(way.begin(), way.end(), add_path);
    }
  }
  return work;
}

// Leaves one replica of those that are alike, whose flows have the streams of all of them.
void Pipelines::join_alike(const std::vector<double>& bytes_per_s) {
  std::vector<ReplicaWork> works;
  works.reserve(at(strategy_.dp));
  for (int d = 0; d < strategy_.dp; ++d) {
    works.push_back(work_of(d));
  }
  // Reductions that follow the last backward of all stages have the links to themselves.
  std::vector<std::vector<LinkUse>> groups;
  std::vector<Path*> group_paths;
  if (strategy_.overlap_gradients) {
    for (auto* flows : {&replica_flows_, &rank_flows_}) {
      for (std::vector<GroupFlow>& of_rank : *flows) {
        for (GroupFlow& flow : of_rank) {
          groups.push_back(flow.path.uses);
          group_paths.push_back(&flow.path);
        }
      }
    }
  }
  alike_ = find_alike(bytes_per_s, works, groups);
  if (alike_.all_differ()) {
    return;
  }
  simulated_.clear();
  stands_for_.assign(at(strategy_.dp), 0);
  for (int d = 0; d < strategy_.dp; ++d) {
    ++stands_for_[at(alike_.first[at(d)])];
    if (alike_.first[at(d)] == d) {
      simulated_.push_back(d);
    }
  }
  for (const int d : simulated_) {
    const std::vector<LinkUse> uses = uses_for_all(alike_, works, d);
    std::size_t next = 0;
    const auto replace = [&](Path& path) {
      const auto from = uses.begin() + static_cast<std::ptrdiff_t>(next);
      next += path.uses.size();
      path.uses = joined({from, uses.begin() + static_cast<std::ptrdiff_t>(next)});
    };
    for (int rank = 0; rank < strategy_.pp; ++rank) {
      Unit& one = unit(rank, d);
      std::for_each(one.cores.begin(), one.cores.end(), replace);
      for (std::vector<Path>& way : one.ways) {
        std::for_each(way.begin(), way.end(), replace);
      }
    }
  }
  for (Path* path : group_paths) {
    std::vector<LinkUse> uses;
    for (const LinkUse& use : path->uses) {
      // Links that are alike carry it alike, and one of them stands for all.
      const LinkUse first = {alike_.first_link[at(use.link)], use.streams};
      if (std::find(uses.begin(), uses.end(), first) == uses.end()) {
        uses.push_back(first);
      }
    }
    path->uses = std::move(uses);
  }
}

} // namespace tessera::simulator
