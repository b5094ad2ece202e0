#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tessera/cost/collective.h"
#include "tessera/simulator/pipeline.h"

namespace tessera::simulator {

// Returns the parameters of a pipeline rank: of all its stages, since the runtime's buckets do not
// end where a stage does.
double Pipelines::parameters_of(int rank) const {
  double sum = 0;
  for (int stage = rank; stage < strategy_.stages(); stage += strategy_.pp) {
    sum += any_table().parameters(first_layer(stage), last_layer(stage));
  }
  return sum;
}

double Pipelines::whole_parameters_of(int rank) const {
  double sum = 0;
  for (int stage = rank; strategy_.tp > 1 && stage < strategy_.stages(); stage += strategy_.pp) {
    sum += any_table().whole_parameters(first_layer(stage), last_layer(stage));
  }
  return sum;
}

void Pipelines::plan_reductions() {
  const cost::Constants& constants = options_.constants;
  for (int rank = 0; rank < strategy_.pp; ++rank) {
    const double parameters = parameters_of(rank);
    const double bytes =
        strategy_.dp > 1 ? (parameters - whole_parameters_of(rank)) * constants.gradient_wire_bytes
                         : 0;
    double buckets = 1;
    if (strategy_.overlap_gradients && bytes > 0) {
      buckets = std::max(
          1.0,
          std::ceil(parameters * constants.gradient_wire_bytes / constants.gradient_bucket_bytes));
    }
    Reduction reduction;
    reduction.bytes = bytes / buckets;
    reduction.replicas_left.assign(static_cast<std::size_t>(buckets), strategy_.dp);
    reduction.released = strategy_.overlap_gradients;
    reduction.left = static_cast<int>(buckets);
    reductions_.push_back(std::move(reduction));
  }
  reductions_left_ = strategy_.pp;
  buckets_of_stage_.resize(at(strategy_.stages()));
  for (int rank = 0; rank < strategy_.pp; ++rank) {
    assign_buckets(rank);
  }
}

// The last backward of a rank's highest stage ends first, so its gradients are first in the
// buckets, and those of the lowest stage are last.
void Pipelines::assign_buckets(int rank) {
  const int buckets = static_cast<int>(reductions_[at(rank)].replicas_left.size());
  const double all = parameters_of(rank);
  int bucket = 0;
  double before = 0; // parameters of the stages so far
  for (int stage = strategy_.stages() - strategy_.pp + rank; stage >= 0; stage -= strategy_.pp) {
    StageBuckets& here = buckets_of_stage_[at(stage)];
    const double own = any_table().parameters(first_layer(stage), last_layer(stage));
    for (; bucket + 1 < buckets; ++bucket) {
      const double end = all * (bucket + 1) / buckets - before;
      if (end > own) {
        break;
      }
      here.numbers.push_back(bucket);
      here.shares.push_back(own > 0 ? end / own : 1);
    }
    before += own;
  }
  StageBuckets& last = buckets_of_stage_[at(rank)];
  for (; bucket < buckets; ++bucket) {
    last.numbers.push_back(bucket); // wait for the lowest stage, whatever it holds
    last.shares.push_back(1);
  }
}

void Pipelines::announce_buckets(int stage, int replica, double seconds) {
  const StageBuckets& buckets = buckets_of_stage_[at(stage)];
  int& announced = stage_run(stage, replica).announced;
  for (std::size_t i = 0; i < buckets.numbers.size() && buckets.shares[i] < 1; ++i) {
    ++announced; // those of a share of 1 are full when the task ends
    at_time(
        now_ + seconds * buckets.shares[i],
        call([this, rank = rank_of(stage), replica, bucket = buckets.numbers[i]] {
          bucket_is_full(rank, replica, bucket);
        }));
  }
}

void Pipelines::fill_buckets(int stage, int replica) {
  const StageBuckets& buckets = buckets_of_stage_[at(stage)];
  const std::size_t announced = at(stage_run(stage, replica).announced);
  for (std::size_t i = announced; i < buckets.numbers.size(); ++i) {
    bucket_is_full(rank_of(stage), replica, buckets.numbers[i]);
  }
}

void Pipelines::bucket_is_full(int rank, int replica, int bucket) {
  Reduction& reduction = reductions_[at(rank)];
  int& left = reduction.replicas_left[at(bucket)];
  left -= stands_for_[at(replica)];
  if (left == 0) {
    ++reduction.full;
    reduce_next(rank);
  }
}

void Pipelines::end_of_stage() {
  if (--stages_left_ == 0) {
    for (int rank = 0; rank < strategy_.pp; ++rank) {
      if (!std::exchange(reductions_[at(rank)].released, true)) {
        reduce_next(rank);
      }
    }
  }
}

// The way to the owners of a divided optimizer state is half of an all-reduce. Where gradients do
// not overlap, the way back directly follows and both are one.
double Pipelines::part_beside() const {
  return strategy_.overlap_gradients && strategy_.shard_optimizer_state ? 0.5 : 1;
}

std::vector<std::vector<int>> Pipelines::replica_groups(int rank) const {
  std::vector<std::vector<int>> groups;
  for (int t = 0; t < strategy_.tp; ++t) {
    groups.push_back(places_.replicas(rank, t));
  }
  return groups;
}

void Pipelines::reduce_next(int rank) {
  Reduction& reduction = reductions_[at(rank)];
  if (!reduction.released || reduction.busy || reduction.started == reduction.full) {
    return;
  }
  reduction.busy = true;
  ++reduction.started;
  const auto passed = [this, rank] {
    reductions_[at(rank)].busy = false;
    reduce_next(rank);
  };
  const auto arrived = [this, rank] {
    if (--reductions_[at(rank)].left == 0) {
      reduce_whole(rank);
    }
  };
  if (reduction.bytes == 0) {
    passed();
    arrived();
    return;
  }
  collective(
      {replica_flows_[at(rank)], reduction.bytes, part_beside(), "all_reduce rdp"},
      passed,
      arrived);
}

// Divided parameters are reduced over replicas; those that every rank holds whole then over all.
void Pipelines::reduce_whole(int rank) {
  const double whole = whole_parameters_of(rank);
  const auto done = [this] {
    if (--reductions_left_ == 0) {
      reduce_shared();
    }
  };
  if (whole == 0) {
    done();
    return;
  }
  const double bytes = whole * options_.constants.gradient_wire_bytes;
  collective(
      {rank_flows_[at(rank)], bytes, part_beside(), "all_reduce dp"}, [] {}, done);
}

// Groups with one rank on each of the same nodes share every link, so they go as one flow.
std::vector<Pipelines::GroupFlow> Pipelines::flows_of(
    const std::vector<std::vector<int>>& groups) const {
  std::map<cost::NodeSet, GroupFlow> alike;
  std::vector<GroupFlow> flows;
  for (const std::vector<int>& ranks : groups) {
    GroupFlow flow{.groups = {ranks}, .place = places_.of(ranks), .path = {}};
    if (!flow.place.crowded.empty()) {
      flows.push_back(std::move(flow));
    } else if (const auto known = alike.find(flow.place.nodes); known != alike.end()) {
      known->second.groups.push_back(ranks);
    } else {
      const cost::NodeSet nodes = flow.place.nodes;
      alike.emplace(nodes, std::move(flow));
    }
  }
  for (auto& [nodes, flow] : alike) {
    flows.push_back(std::move(flow));
  }
  for (GroupFlow& flow : flows) {
    flow.path = ring_path(flow.groups.front(), static_cast<int>(flow.groups.size()), flow.place);
  }
  return flows;
}

// In a ring every rank sends to the next, so the network of a node carries the ring once, however
// many of its ranks are in the node. Why all links between the nodes carry it:
// cost::PlacementLinks.
Pipelines::Path Pipelines::ring_path(
    const std::vector<int>& ranks,
    int streams,
    const cost::GroupPlace& place) const {
  Path path{.limit = kUnlimited};
  const auto add = [&](int link) { path.uses.push_back({link, streams}); };
  for (std::size_t i = 0; i < place.nodes.size() && place.nodes.size() > 1; ++i) {
    const int node = place.nodes[i];
    add(out_link(node));
    add(in_link(node));
    path.limit = std::min(
        path.limit,
        cost::collective_bytes_per_s(cluster_.nodes[at(node)], place.ranks[i]) *
            options_.constants.link_efficiency);
  }
  for (const int pair : place.links) {
    add(pair_link(pair, false));
    add(pair_link(pair, true));
  }
  for (const int rank : ranks) {
    if (std::binary_search(place.crowded.begin(), place.crowded.end(), places_.node(rank))) {
      add(device_link(rank, false));
      add(device_link(rank, true));
    }
  }
  return path;
}

void Pipelines::collective(
    const Collective& what,
    const std::function<void()>& passed,
    const std::function<void()>& then) {
  const double start = now_;
  auto passing = std::make_shared<std::size_t>(what.flows.size());
  auto left = std::make_shared<std::size_t>(what.flows.size());
  const auto one_passed = [passing, passed] {
    if (--*passing == 0) {
      passed();
    }
  };
  const auto arrived = [left, then] {
    if (--*left == 0) {
      then();
    }
  };
  for (const GroupFlow& flow : what.flows) {
    if (!options_.keep_events) {
      all_reduce(flow, what, one_passed, arrived);
      continue;
    }
    const auto recorded =
        [this, groups = flow.groups, bytes = what.bytes, name = what.name, start, arrived] {
          for (const std::vector<int>& ranks : groups) {
            for (const int rank : ranks) {
              const int group = rank / strategy_.tp;
              if (rank % strategy_.tp == 0) {
                record(
                    group / strategy_.dp,
                    group % strategy_.dp,
                    name,
                    "comm",
                    -1,
                    1,
                    start,
                    now_,
                    bytes);
              }
            }
          }
          arrived();
        };
    all_reduce(flow, what, one_passed, recorded);
  }
}

void Pipelines::all_reduce(
    const GroupFlow& groups,
    const Collective& what,
    const std::function<void()>& passed,
    const std::function<void()>& then) {
  const int n = static_cast<int>(groups.groups.front().size());
  const cost::KnownCollective known =
      cluster_.collective("all_reduce", n, cluster_.span_of(groups.place.nodes), what.bytes);
  const bool flows = known.seconds == 0 || known.elsewhere;
  auto parts = std::make_shared<int>((known.seconds > 0 ? 1 : 0) + (flows ? 1 : 0));
  const bool measured = known.seconds > 0;
  const auto ended = [parts, measured, passed, then] {
    if (--*parts > 0) {
      return;
    }
    if (measured) {
      passed();
    }
    then();
  };
  if (measured) {
    // The measured time holds what groups of this size shared, so no link bounds it.
    at_time(now_ + known.seconds * what.part, call(ended));
  }
  if (!flows) {
    return;
  }
  const cost::Traffic ring =
      cost::ring_traffic("all_reduce", n, static_cast<int>(groups.place.nodes.size()), what.bytes);
  const double latency =
      what.part * cost::all_reduce_delay(
                      groups.place, places_.links(), what.bytes, cluster_, options_.constants);
  flow(
      what.part * ring.wire_bytes,
      groups.path.uses,
      groups.path.limit,
      call([this, latency, measured, passed, ended] {
        if (!measured) {
          passed();
        }
        at_time(now_ + latency, call(ended));
      }));
}

void Pipelines::reduce_shared() {
  std::vector<int> sharing;
  double parameters = 0;
  for (int k = 0; k < strategy_.stages(); ++k) {
    const double tied = any_table().tied_parameters(first_layer(k), last_layer(k));
    if (tied > 0) {
      // Several stages of one rank hold the parameters once.
      if (std::find(sharing.begin(), sharing.end(), rank_of(k)) == sharing.end()) {
        sharing.push_back(rank_of(k));
      }
      parameters = std::max(parameters, tied);
    }
  }
  if (sharing.size() < 2) {
    step_optimizer();
    return;
  }
  std::vector<std::vector<int>> groups;
  for (int d = 0; d < strategy_.dp; ++d) {
    for (int t = 0; t < strategy_.tp; ++t) {
      groups.push_back(places_.across(sharing, d, t));
    }
  }
  const double bytes = parameters * options_.constants.gradient_wire_bytes;
  collective(
      {flows_of(groups), bytes, 1, "all_reduce shared"}, [] {}, [this] { step_optimizer(); });
}

void Pipelines::step_optimizer() {
  stepped_ = true;
  iteration_ = now_;
  for (int rank = 0; rank < strategy_.pp; ++rank) {
    double longest = 0;
    for (int d = 0; d < strategy_.dp; ++d) {
      double seconds = 0;
      for (int stage = rank; stage < strategy_.stages(); stage += strategy_.pp) {
        seconds += stage_run(stage, d).optimizer_seconds;
      }
      record(rank, d, "step", "optimizer", -1, 0, now_, now_ + seconds);
      longest = std::max(longest, seconds);
    }
    iteration_ = std::max(iteration_, now_ + longest);
    if (part_beside() < 1) {
      at_time(now_ + longest, call([this, rank] { return_parameters(rank); }));
    }
  }
}

// The owners of a divided optimizer state send the parameters that they have updated.
void Pipelines::return_parameters(int rank) {
  const double wire = options_.constants.gradient_wire_bytes;
  const double whole = whole_parameters_of(rank) * wire;
  const double divided = parameters_of(rank) * wire - whole;
  const auto arrived = [this] { iteration_ = std::max(iteration_, now_); };
  if (strategy_.dp > 1 && divided > 0) {
    collective(
        {replica_flows_[at(rank)], divided, 1 - part_beside(), "broadcast"}, [] {}, arrived);
  }
  if (whole > 0) {
    collective(
        {rank_flows_[at(rank)], whole, 1 - part_beside(), "broadcast"}, [] {}, arrived);
  }
}

} // namespace tessera::simulator
