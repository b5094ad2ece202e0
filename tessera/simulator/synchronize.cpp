#include <algorithm>
#include <limits>
#include <utility>

#include "tessera/cost/collective.h"
#include "tessera/simulator/pipeline.h"

namespace tessera::simulator {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

} // namespace

void Pipelines::end_of_stage(int stage) {
  --stages_left_;
  if (strategy_.overlap_gradients) {
    reduce_gradients(stage);
  } else if (stages_left_ == 0) {
    for (int k = 0; k < strategy_.pp; ++k) {
      reduce_gradients(k);
    }
  }
}

void Pipelines::collective(
    const std::vector<std::vector<int>>& groups,
    double bytes,
    const std::string& name,
    const std::function<void()>& then) {
  const double start = now_;
  auto left = std::make_shared<std::size_t>(groups.size());
  for (const std::vector<int>& ranks : groups) {
    all_reduce(ranks, bytes, [this, ranks, bytes, name, start, left, then] {
      for (const int rank : ranks) {
        const int group = rank / strategy_.tp;
        if (rank % strategy_.tp == 0) {
          record(
              group / strategy_.dp, group % strategy_.dp, name, "comm", -1, 1, start, now_, bytes);
        }
      }
      if (--*left == 0) {
        then();
      }
    });
  }
}

void Pipelines::all_reduce(
    const std::vector<int>& ranks,
    double bytes,
    const std::function<void()>& then) {
  const int n = static_cast<int>(ranks.size());
  const cost::GroupPlace place = places_.of(ranks);
  const cost::KnownCollective known =
      cluster_.collective("all_reduce", n, cluster_.span_of(place.nodes), bytes);
  const bool flows = known.seconds == 0 || known.elsewhere;
  auto parts = std::make_shared<int>((known.seconds > 0 ? 1 : 0) + (flows ? 1 : 0));
  const auto ended = [parts, then] {
    if (--*parts == 0) {
      then();
    }
  };
  if (known.seconds > 0) {
    // The measured time holds what groups of this size shared, so no link bounds it.
    at_time(now_ + known.seconds, ended);
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
  for (const int node : place.crowded) {
    limit = std::min(
        limit, cluster_.nodes[at(node)].intra_bytes_per_s * options_.constants.link_efficiency);
  }
  const cost::Traffic ring = cost::ring_traffic("all_reduce", n, bytes);
  const double latency = ring.steps * options_.constants.link_latency_seconds;
  on_flow_end_.emplace_back([this, latency, ended] { at_time(now_ + latency, ended); });
  network_.start(now_, ring.wire_bytes, std::move(links), 1, limit);
}

void Pipelines::reduce_gradients(int stage) {
  const int first = strategy_.boundaries[at(stage)];
  const int last = strategy_.boundaries[at(stage) + 1];
  const double whole = strategy_.tp > 1 ? table_.whole_parameters(first, last) : 0;
  const double divided = table_.parameters(first, last) - whole;
  const auto done = [this] {
    if (--reductions_left_ == 0) {
      reduce_shared();
    }
  };
  // Divided parameters are reduced over replicas; those that every rank holds whole then over all.
  std::vector<std::vector<int>> replicas;
  for (int t = 0; t < strategy_.tp; ++t) {
    replicas.push_back(places_.replicas(stage, t));
  }
  const std::vector<int> everyone = places_.stage(stage);
  const double wire = options_.constants.gradient_wire_bytes;
  const auto reduce_whole = [this, everyone, whole, wire, done] {
    if (whole > 0) {
      collective({everyone}, whole * wire, "all_reduce dp", done);
    } else {
      done();
    }
  };
  if (strategy_.dp > 1 && divided > 0) {
    collective(replicas, divided * wire, "all_reduce rdp", reduce_whole);
  } else {
    reduce_whole();
  }
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
  collective(
      groups, parameters * options_.constants.gradient_wire_bytes, "all_reduce shared", [this] {
        step_optimizer();
      });
}

void Pipelines::step_optimizer() {
  stepped_ = true;
  iteration_ = now_;
  for (int k = 0; k < strategy_.pp; ++k) {
    for (int d = 0; d < strategy_.dp; ++d) {
      const double seconds = unit(k, d).optimizer_seconds;
      record(k, d, "step", "optimizer", -1, 0, now_, now_ + seconds);
      iteration_ = std::max(iteration_, now_ + seconds);
    }
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

void Pipelines::sample_memory(int stage, int replica) {
  if (replica != 0) {
    return;
  }
  const cost::StageMemory memory = table_.memory(
      strategy_.boundaries[at(stage)],
      strategy_.boundaries[at(stage) + 1],
      cost::stage_state(strategy_, unit(stage, replica).in_flight));
  // Samples are between tasks, when no layer runs; memory_high_water has the peaks.
  result_.memory_over_time[at(stage)].push_back(
      {now_ * 1e6, memory.total() - memory.working - memory.logits});
}

SimulationResult Pipelines::result() {
  SimulationResult result = std::move(result_);
  result.iteration_seconds = iteration_;
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
                                   cost::stage_state(strategy_, unit(k, d).most_in_flight))
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
