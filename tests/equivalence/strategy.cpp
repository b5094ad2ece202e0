#include "tests/equivalence/strategy.h"

#include <numeric>
#include <sstream>
#include <vector>

#include "tests/equivalence/random.h"

namespace tessera::equivalence {

namespace {

// Any order that the library allows: each F before its B, at most `active`
// microbatches between the two.
std::string random_order(Random& random, int microbatches, int active) {
  std::vector<int> waiting(static_cast<std::size_t>(microbatches));
  std::iota(waiting.begin(), waiting.end(), 0);
  std::vector<int> open;
  std::string text;
  const auto take = [&](std::vector<int>& list) {
    const auto at = random.integer(0, static_cast<int>(list.size()) - 1);
    const int value = list[at];
    list.erase(list.begin() + at);
    return value;
  };
  while (!waiting.empty() || !open.empty()) {
    const bool room = static_cast<int>(open.size()) < active;
    if (!waiting.empty() && room && (open.empty() || random.chance(60))) {
      open.push_back(take(waiting));
      text += std::to_string(open.back()) + "F ";
    } else {
      text += std::to_string(take(open)) + "B ";
    }
  }
  text.pop_back();
  return text;
}

// Modules that share a weight must be on one rank.
int holder_of_weight(const Tree& tree, int module) {
  while (tree.modules[module].tied_to >= 0) {
    module = tree.modules[module].tied_to;
  }
  return module;
}

void choose_partition(Random& random, const Tree& tree, int pp, Strategy& strategy) {
  config::Config& config = strategy.config;
  if (random.chance(35)) {
    config.memory_weight = random.integer(0, 4) / 4.0;
    config.skip_tracing = random.chance(20);
    return;
  }
  config.auto_partition = false;
  config.default_partition = random.integer(0, pp - 1);
  const bool in_scopes = random.chance(40);
  std::vector<int> rank_of(tree.modules.size(), -1);
  for (const Node& node : nodes_of(tree)) {
    int chosen = random.integer(0, pp - 1);
    if (node.child < 0) {
      int& decided = rank_of[holder_of_weight(tree, node.module)];
      chosen = decided = decided < 0 ? chosen : decided;
    }
    const Place place{node.module, node.child, node.layer};
    strategy.ranks[place] = chosen;
    if (in_scopes) {
      strategy.build.scopes[place] = chosen;
    } else {
      config.partition[node.path] = chosen;
    }
  }
}

std::string to_text(const Place& place) {
  std::ostringstream out;
  out << "(module " << std::get<0>(place) << ", child " << std::get<1>(place) << ", layer "
      << std::get<2>(place) << ')';
  return out.str();
}

} // namespace

Strategy random_strategy(
    const Tree& tree,
    int world,
    std::uint64_t seed,
    std::uint64_t number,
    const Degrees& wanted) {
  Random random(seed, 2 * number + 1);
  Strategy made;
  config::Config& config = made.config;
  std::vector<int> degrees;
  for (int pp = 1; pp <= world; ++pp) {
    if (world % pp == 0) {
      degrees.push_back(pp);
      if (pp > 1) { // where most can go wrong
        degrees.push_back(pp);
      }
    }
  }
  const int drawn = random.pick(degrees);
  const int pp = wanted.pipeline > 0 ? wanted.pipeline : drawn;
  const int dp = world / pp;
  config.pipeline_parallel_degree = pp;
  config.tensor_parallel_degree = wanted.tensor;
  config.prescaled_batch = wanted.prescaled;
  config.ddp = dp > 1;
  config.microbatches = random.integer(1, 8);
  config.timeout_seconds = 60;
  config.allow_ranks_without_parameters = true; // a random tree may be one module
  config.transport_buffer_bytes = random.pick<std::int64_t>(
      {std::int64_t{1} << 16, std::int64_t{1} << 20, std::int64_t{4} << 20});
  config.same_node_backend = random.pick<std::string>({"auto", "shm", "mpi"});
  config.placement_strategy = random.pick<std::string>({"cluster", "spread", "PDT", "DPT", "TPD"});
  if (pp > 1) {
    if (wanted.operations) {
      config.partition_mode = "operations";
      config.contiguous = random.chance(60);
      config.optimize = random.pick<std::string>({"memory", "speed"});
    } else {
      choose_partition(random, tree, pp, made);
    }
    int active = pp + 2;
    if (random.chance(50)) {
      active = random.integer(1, config.microbatches);
      config.active_microbatches = active;
    }
    config.pipeline = random.pick<std::string>({"simple", "interleaved", "custom"});
    if (config.pipeline == "custom") {
      config.custom_schedule = random_order(random, config.microbatches, active);
    }
    // One order of tasks needs the same modules called everywhere.
    config.deterministic_server = dp > 1 && !tree.depends_on_data && random.chance(50);
  }
  // Recorded steps must all take one way.
  if (!tree.depends_on_data && !wanted.operations && random.chance(60)) {
    config.static_mode = true;
    config.static_mode_steps = random.integer(1, 2);
    config.fast_mode = random.chance(60);
  }
  made.rows = random.integer(1, 3);
  made.passes = random.chance(20) ? 2 : 1;
  made.overlap = random.chance(70);
  made.average = random.chance(80);
  made.bucket_mb = random.chance(50) ? 25 : 0.0005;
  made.two_losses = random.chance(30);
  if (config.static_mode) { // some steps that are repeated, at the least
    made.steps = (config.static_mode_steps + (config.fast_mode ? 1 : 0)) / made.passes + 2;
  }
  return made;
}

void shard_parameters(Random& random, int shards, config::Config& config) {
  config.sharded_data_parallel_degree = shards;
  config.same_node_backend = random.pick<std::string>({"auto", "shm"}); // parts are read in place
  config.sdp_param_persistence_threshold = random.pick<std::int64_t>({0, 0, 65, 1'000'000});
  config.sdp_reduce_bucket_size = random.pick<std::int64_t>({1, 100, 500'000'000});
  config.sdp_max_live_parameters = random.pick<std::int64_t>({1, 100, 1'000'000'000});
  config.sdp_hierarchical_allgather = random.chance(50);
}

int replicas_of(const config::Config& config, int world) {
  const int replicas = world / config.pipeline_parallel_degree;
  return config.prescaled_batch ? replicas / config.tensor_parallel_degree : replicas;
}

int rows_of(const Strategy& strategy, int step, int replica) {
  if (!strategy.rows_of_replica.empty()) {
    return strategy.rows_of_replica.at(static_cast<std::size_t>(replica));
  }
  return strategy.rows + (strategy.more_rows_of_odd_replicas && replica % 2 == 1 ? 1 : 0) +
         (strategy.more_rows_in_odd_steps && step % 2 == 1 ? 1 : 0);
}

double weight_of(const Strategy& strategy, int replica) {
  const std::vector<int>& rows = strategy.rows_of_replica;
  if (rows.empty()) {
    return 1;
  }
  const double all = std::accumulate(rows.begin(), rows.end(), 0);
  return rows.at(static_cast<std::size_t>(replica)) * static_cast<double>(rows.size()) / all;
}

std::string to_text(const Strategy& strategy) {
  std::ostringstream out;
  out << config::to_json(strategy.config) << "\nrows of a microbatch " << strategy.rows
      << ", optimizer steps " << strategy.steps << ", backward passes " << strategy.passes
      << ", overlap " << strategy.overlap << ", average " << strategy.average << ", bucket "
      << strategy.bucket_mb << " MiB, two losses " << strategy.two_losses << '\n';
  if (strategy.more_rows_of_odd_replicas || strategy.more_rows_in_odd_steps) {
    out << "one row more " << (strategy.more_rows_of_odd_replicas ? "for odd replicas " : "")
        << (strategy.more_rows_in_odd_steps ? "in odd steps" : "") << '\n';
  }
  out << to_text(strategy.ways);
  for (const auto& [place, rank] : strategy.build.scopes) {
    out << "scope of " << to_text(place) << ": " << rank << '\n';
  }
  for (const auto& [place, how] : strategy.build.recomputed) {
    out << "recomputed " << how << ": " << to_text(place) << '\n';
  }
  return out.str();
}

} // namespace tessera::equivalence
