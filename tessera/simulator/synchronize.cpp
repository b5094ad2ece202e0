#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tessera/base/index.h"
#include "tessera/cost/collective.h"
#include "tessera/simulator/pipeline.h"

namespace tessera::simulator {

void Pipelines::plan_reductions() {
  const cost::Constants& constants = options_.constants;
  for (int k = 0; k < strategy_.pp; ++k) {
    const int first = strategy_.boundaries[at(k)];
    const int last = strategy_.boundaries[at(k) + 1];
    const double whole = strategy_.tp > 1 ? table_.whole_parameters(first, last) : 0;
    const double parameters = table_.parameters(first, last);
    const double bytes =
        strategy_.dp > 1 ? (parameters - whole) * constants.gradient_wire_bytes : 0;
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
}

void Pipelines::announce_buckets(int stage, int replica, double seconds) {
  const int buckets = static_cast<int>(reductions_[at(stage)].replicas_left.size());
  unit(stage, replica).announced = buckets - 1; // the last one becomes full when the task ends
  for (int bucket = 0; bucket + 1 < buckets; ++bucket) {
    at_time(now_ + seconds * (bucket + 1) / buckets, [this, stage, bucket] {
      bucket_is_full(stage, bucket);
    });
  }
}

void Pipelines::bucket_is_full(int stage, int bucket) {
  Reduction& reduction = reductions_[at(stage)];
  if (--reduction.replicas_left[at(bucket)] == 0) {
    ++reduction.full;
    reduce_next(stage);
  }
}

void Pipelines::end_of_stage() {
  if (--stages_left_ == 0) {
    for (int k = 0; k < strategy_.pp; ++k) {
      if (!std::exchange(reductions_[at(k)].released, true)) {
        reduce_next(k);
      }
    }
  }
}

// The way to the owners of a divided optimizer state is half of an all-reduce. Where gradients do
// not overlap, the way back directly follows and both are one.
double Pipelines::part_beside() const {
  return strategy_.overlap_gradients && strategy_.shard_optimizer_state ? 0.5 : 1;
}

std::vector<std::vector<int>> Pipelines::replica_groups(int stage) const {
  std::vector<std::vector<int>> groups;
  for (int t = 0; t < strategy_.tp; ++t) {
    groups.push_back(places_.replicas(stage, t));
  }
  return groups;
}

void Pipelines::reduce_next(int stage) {
  Reduction& reduction = reductions_[at(stage)];
  if (!reduction.released || reduction.busy || reduction.started == reduction.full) {
    return;
  }
  reduction.busy = true;
  ++reduction.started;
  const auto passed = [this, stage] {
    reductions_[at(stage)].busy = false;
    reduce_next(stage);
  };
  const auto arrived = [this, stage] {
    if (--reductions_[at(stage)].left == 0) {
      reduce_whole(stage);
    }
  };
  if (reduction.bytes == 0) {
    passed();
    arrived();
    return;
  }
  collective(
      {replica_groups(stage), reduction.bytes, part_beside(), "all_reduce rdp"}, passed, arrived);
}

// Divided parameters are reduced over replicas; those that every rank holds whole then over all.
void Pipelines::reduce_whole(int stage) {
  const int first = strategy_.boundaries[at(stage)];
  const int last = strategy_.boundaries[at(stage) + 1];
  const double whole = strategy_.tp > 1 ? table_.whole_parameters(first, last) : 0;
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
      {{places_.stage(stage)}, bytes, part_beside(), "all_reduce dp"}, [] {}, done);
}

void Pipelines::collective(
    const Collective& what,
    const std::function<void()>& passed,
    const std::function<void()>& then) {
  const double start = now_;
  // Groups with one rank on each of the same nodes share every link, so they go as one flow.
  std::map<cost::NodeSet, std::vector<std::vector<int>>> alike;
  std::vector<std::vector<std::vector<int>>> flows;
  for (const std::vector<int>& ranks : what.groups) {
    const cost::GroupPlace place = places_.of(ranks);
    if (place.crowded.empty()) {
      alike[place.nodes].push_back(ranks);
    } else {
      flows.push_back({ranks});
    }
  }
  for (auto& [nodes, groups] : alike) {
    flows.push_back(std::move(groups));
  }
  auto passing = std::make_shared<std::size_t>(flows.size());
  auto left = std::make_shared<std::size_t>(flows.size());
  const auto one_passed = [passing, passed] {
    if (--*passing == 0) {
      passed();
    }
  };
  for (const auto& groups : flows) {
    const auto arrived = [this, groups, bytes = what.bytes, name = what.name, start, left, then] {
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
      if (--*left == 0) {
        then();
      }
    };
    all_reduce(groups.front(), static_cast<int>(groups.size()), what, one_passed, arrived);
  }
}

void Pipelines::all_reduce(
    const std::vector<int>& ranks,
    int weight,
    const Collective& what,
    const std::function<void()>& passed,
    const std::function<void()>& then) {
  const int n = static_cast<int>(ranks.size());
  const cost::GroupPlace place = places_.of(ranks);
  const cost::KnownCollective known =
      cluster_.collective("all_reduce", n, cluster_.span_of(place.nodes), what.bytes);
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
    at_time(now_ + known.seconds * what.part, ended);
  }
  if (!flows) {
    return;
  }
  // In a ring every rank sends to the next, so the network of a node carries the ring once,
  // however many of its ranks are in the node. Why all links between the nodes carry it:
  // cost::PlacementLinks.
  std::vector<int> links;
  double limit = kUnlimited;
  for (const int node : place.nodes) {
    if (place.nodes.size() > 1) {
      links.push_back(out_link(node));
      links.push_back(in_link(node));
      limit = std::min(
          limit,
          cost::stream_bytes_per_s(cluster_.nodes[at(node)]) * options_.constants.link_efficiency);
    }
  }
  for (const int pair : place.links) {
    links.push_back(pair_link(pair, false));
    links.push_back(pair_link(pair, true));
  }
  for (const int rank : ranks) {
    if (std::binary_search(place.crowded.begin(), place.crowded.end(), places_.node(rank))) {
      links.push_back(device_link(rank, false));
      links.push_back(device_link(rank, true));
    }
  }
  const cost::Traffic ring = cost::ring_traffic("all_reduce", n, what.bytes);
  const double latency = what.part * ring.steps * options_.constants.link_latency_seconds;
  flow(
      what.part * ring.wire_bytes,
      std::move(links),
      weight,
      limit,
      [this, latency, measured, passed, ended] {
        if (!measured) {
          passed();
        }
        at_time(now_ + latency, ended);
      });
}

void Pipelines::reduce_shared() {
  std::vector<int> sharing;
  double parameters = 0;
  for (int k = 0; k < strategy_.pp; ++k) {
    const double tied =
        table_.tied_parameters(strategy_.boundaries[at(k)], strategy_.boundaries[at(k) + 1]);
    if (tied > 0) {
      sharing.push_back(k);
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
      {groups, bytes, 1, "all_reduce shared"}, [] {}, [this] { step_optimizer(); });
}

void Pipelines::step_optimizer() {
  stepped_ = true;
  iteration_ = now_;
  for (int k = 0; k < strategy_.pp; ++k) {
    double longest = 0;
    for (int d = 0; d < strategy_.dp; ++d) {
      const double seconds = unit(k, d).optimizer_seconds;
      record(k, d, "step", "optimizer", -1, 0, now_, now_ + seconds);
      longest = std::max(longest, seconds);
    }
    iteration_ = std::max(iteration_, now_ + longest);
    if (part_beside() < 1) {
      at_time(now_ + longest, [this, k] { return_parameters(k); });
    }
  }
}

// The owners of a divided optimizer state send the parameters that they have updated.
void Pipelines::return_parameters(int stage) {
  const int first = strategy_.boundaries[at(stage)];
  const int last = strategy_.boundaries[at(stage) + 1];
  const double wire = options_.constants.gradient_wire_bytes;
  const double whole = strategy_.tp > 1 ? table_.whole_parameters(first, last) * wire : 0;
  const double divided = table_.parameters(first, last) * wire - whole;
  const auto arrived = [this] { iteration_ = std::max(iteration_, now_); };
  if (strategy_.dp > 1 && divided > 0) {
    collective(
        {replica_groups(stage), divided, 1 - part_beside(), "broadcast"}, [] {}, arrived);
  }
  if (whole > 0) {
    collective(
        {{places_.stage(stage)}, whole, 1 - part_beside(), "broadcast"}, [] {}, arrived);
  }
}

void Pipelines::record(
    int stage,
    int replica,
    const std::string& name,
    const std::string& category,
    int microbatch,
    int lane,
    double start,
    double end,
    double bytes) {
  if (!options_.keep_events) {
    return;
  }
  for (int t = 0; t < strategy_.tp; ++t) {
    timeline::Event event;
    event.name = name;
    event.category = category;
    event.rank = strategy_.rank(stage, replica, t);
    event.pp_rank = stage;
    event.microbatch = microbatch;
    event.step = 0;
    event.lane = lane;
    event.start_us = start * 1e6;
    event.end_us = end * 1e6;
    event.bytes = static_cast<std::int64_t>(bytes);
    result_.timeline.events.push_back(std::move(event));
  }
}

cost::StageState Pipelines::state_of(int stage, int in_flight) const {
  cost::StageState state = cost::stage_state(strategy_, in_flight);
  state.host_runs_ahead = host_runs_ahead_[at(stage)] != 0;
  return state;
}

void Pipelines::sample_memory(int stage, int replica, bool runs) {
  if (replica != 0) {
    return;
  }
  const cost::StageMemory memory = table_.memory(
      strategy_.boundaries[at(stage)],
      strategy_.boundaries[at(stage) + 1],
      state_of(stage, unit(stage, replica).in_flight));
  result_.memory_over_time[at(stage)].push_back(
      {now_ * 1e6, memory.total() - (runs ? 0 : memory.working + memory.logits)});
}

SimulationResult Pipelines::result() {
  SimulationResult result = std::move(result_);
  result.iteration_seconds = iteration_;
  result.seconds_range = cost::seconds_range(model_, iteration_);
  const double whole = span_seconds_ * strategy_.devices();
  result.bubble_share = whole > 0 ? 1 - busy_seconds_ / whole : 0;
  result.timeline.world_size = strategy_.devices();
  result.timeline.origin = "simulated";
  const auto& constants = options_.constants;
  for (int k = 0; k < strategy_.pp; ++k) {
    for (int d = 0; d < strategy_.dp; ++d) {
      const double bytes = table_
                               .memory(
                                   strategy_.boundaries[at(k)],
                                   strategy_.boundaries[at(k) + 1],
                                   state_of(k, unit(k, d).most_in_flight))
                               .total();
      for (int t = 0; t < strategy_.tp; ++t) {
        result.memory_high_water.push_back(bytes);
        result.needed_bytes.push_back(
            (bytes + constants.context_bytes) / cost::usable_share(model_, strategy_, constants));
      }
    }
  }
  return result;
}

} // namespace tessera::simulator
