#include "tessera/planner/candidate_text.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/planner/objective.h"
#include "tessera/planner/simplest.h"
#include "tessera/planner/to_config.h"

namespace tessera::planner {

namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

template <typename... Values>
std::string line(const char* format, Values... values) {
  const int length = std::snprintf(nullptr, 0, format, values...);
  std::string text(static_cast<std::size_t>(length) + 1, '\n');
  std::snprintf(text.data(), text.size(), format, values...);
  text.back() = '\n'; // in place of the final zero
  return text;
}

// Returns the nodes whose devices run a stage: "0,3".
std::string
nodes_of_stage(const cost::Strategy& strategy, int stage, const std::vector<int>& node_of_device) {
  std::set<int> nodes;
  for (int i = 0; i < strategy.dp * strategy.tp; ++i) {
    const int rank = strategy.rank(stage, 0, 0) + i;
    const int device = strategy.device_of_rank[static_cast<std::size_t>(rank)];
    nodes.insert(node_of_device[static_cast<std::size_t>(device)]);
  }
  std::string text;
  for (const int node : nodes) {
    text += (text.empty() ? "" : ",") + std::to_string(node);
  }
  return text;
}

std::string features_text(const cost::Strategy& strategy) {
  std::string text;
  const auto add = [&text](bool has, const char* name) {
    text += has ? str("  ", name) : std::string();
  };
  add(strategy.shard_optimizer_state && !strategy.shard_parameters, "sharded optimizer state");
  add(strategy.shard_parameters, "sharded parameters");
  add(strategy.offload_optimizer_state, "offloaded optimizer state");
  add(strategy.offload_activations, "offloaded activations");
  add(strategy.activation_checkpointing,
      strategy.keeps_products ? "recomputed activations but for products"
                              : "recomputed activations");
  add(strategy.schedule == cost::Schedule::kSimple && strategy.pp > 1, "simple schedule");
  add(strategy.fast_mode, "fast mode");
  const int usual = strategy.pp + 2; // of the key active_microbatches
  if (strategy.pp > 1 && strategy.active_microbatches > 0 &&
      strategy.active_microbatches != usual) {
    text += str("  ", strategy.active_microbatches, " in flight");
  }
  if (strategy.stages_per_rank > 1) {
    text += str("  ", strategy.stages_per_rank, " stages a rank in turns");
  }
  return text;
}

// Returns the layers of a pipeline rank: "0..3", or of several stages "0..1,8".
std::string layers_text(const cost::Strategy& strategy, int rank) {
  std::string text;
  for (int stage = rank; stage < strategy.stages(); stage += strategy.pp) {
    const auto [first, last] = strategy.layers_of(stage);
    text += text.empty() ? "" : ",";
    text +=
        last - first == 1 && strategy.stages_per_rank > 1 ? str(first) : str(first, "..", last - 1);
  }
  return text;
}

// Returns the samples of a microbatch: "4", or of unlike replicas "5+3".
std::string samples_text(const cost::Strategy& strategy) {
  if (strategy.replica_microbatch.empty()) {
    return str("microbatch size ", strategy.microbatch_size);
  }
  std::string text;
  for (const int samples : strategy.replica_microbatch) {
    text += str(text.empty() ? "microbatch sizes " : "+", samples);
  }
  return text;
}

// Returns which layers a strategy leaves whole that divides others: ", layers 3..5,9 whole".
std::string whole_layers_text(const cost::Strategy& strategy) {
  std::string text;
  const auto count = strategy.whole_layers.size();
  for (std::size_t first = 0; first < count; ++first) {
    std::size_t last = first;
    while (strategy.is_whole(first) && strategy.is_whole(last + 1)) {
      ++last;
    }
    if (strategy.is_whole(first)) {
      text += text.empty() ? ", layers " : ",";
      text += last > first ? str(first, "..", last) : str(first);
    }
    first = last;
  }
  return text.empty() ? text : text + " whole";
}

bool is_in_turns(const Candidate& candidate) {
  return candidate.strategy.stages_per_rank > 1;
}

bool has_unlike_replicas(const Candidate& candidate) {
  return !candidate.strategy.replica_microbatch.empty();
}

// Returns on which nodes a strategy runs that leaves some out, or whose ranks do not take them in
// the order of the cluster file.
std::string nodes_text(const Candidate& candidate) {
  const std::vector<int>& order = candidate.node_order;
  std::string text;
  if (candidate.leaves_out || !std::is_sorted(order.begin(), order.end())) {
    for (const int node : order) {
      text += (text.empty() ? "  on nodes " : ",") + std::to_string(node);
    }
  }
  return text;
}

} // namespace

std::string tensor_text(const cost::Strategy& strategy) {
  std::string text = "tp " + std::to_string(strategy.tp);
  if (strategy.tp > 1 && strategy.distribution != cost::Distribution::kAsMeasured) {
    text += str(" ", text_of(strategy.distribution)) +
            (strategy.same_samples ? ", prescaled batch" : "");
  }
  return text;
}

std::string headline(const cost::Strategy& strategy) {
  return "pp " + std::to_string(strategy.pp) + "  dp " + std::to_string(strategy.dp) + "  " +
         tensor_text(strategy) + whole_layers_text(strategy) + "  " + samples_text(strategy) +
         "  placement " + (strategy.placement.empty() ? "own" : strategy.placement) +
         features_text(strategy);
}

std::string explain(
    const Candidate& candidate,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster) {
  const cost::Strategy& strategy = candidate.strategy;
  const cost::StrategyCost& cost = candidate.cost;
  std::string text = headline(strategy) + "\n";
  if (candidate.calibrated_seconds > 0) {
    text += line("  %10.4f s  an iteration, calibrated by trials", candidate.calibrated_seconds);
  }
  if (candidate.simulated_seconds > 0) {
    text += line("  %10.4f s  an iteration, executed event by event", candidate.simulated_seconds);
  }
  text += line(
      "  %10.4f s  an iteration by estimate (nine of ten measured runs: %.4f to %.4f s), of which",
      cost.seconds,
      cost.seconds_range.low,
      cost.seconds_range.high);
  text += line(
      "  %10.4f s  computation of the slowest stage, %d microbatches",
      cost.compute_seconds,
      strategy.microbatches(model.global_batch_size));
  text += line("  %10.4f s  its tensor-parallel traffic", cost.tensor_seconds);
  if (cost.waiting_seconds > 0) {
    text += line("  %10.4f s  waiting for its hosts to start operators", cost.waiting_seconds);
  }
  text += line("  %10.4f s  bubble", cost.bubble_seconds);
  if (cost.shared_cores_seconds > 0) {
    text += line("  %10.4f s  waiting for cores that ranks share", cost.shared_cores_seconds);
  }
  text += line("  %10.4f s  between stages", cost.transfer_seconds);
  if (cost.stall_seconds > 0) {
    text += line("  %10.4f s  stalls of the network", cost.stall_seconds);
  }
  text += line("  %10.4f s  gradients", cost.gradient_seconds);
  text += line("  %10.4f s  optimizer", cost.optimizer_seconds);
  text +=
      "  memory in GiB, one device of each stage:\n"
      "  stage  layers    weights  gradients  optimizer  kept  working  logits"
      "  needs  has  nodes\n";
  const std::vector<int> node_of = cluster.node_of_device();
  for (int k = 0; k < strategy.pp; ++k) {
    const auto at = static_cast<std::size_t>(k);
    const cost::StageCost& stage = cost.stages[at];
    text += line(
        "  %5d  %-8s  %8.2f  %9.2f  %9.2f  %4.1f  %7.2f  %6.2f  %5.1f  "
        "%-4.1f %s",
        k,
        layers_text(strategy, k).c_str(),
        stage.memory.weights / kGib,
        stage.memory.gradients / kGib,
        stage.memory.optimizer / kGib,
        stage.memory.activations / kGib,
        stage.memory.working / kGib,
        stage.memory.logits / kGib,
        stage.needed_bytes / kGib,
        stage.device_bytes / kGib,
        nodes_of_stage(strategy, k, node_of).c_str());
  }
  text += "  (\"needs\" adds the driver's context and fragmentation)\n";
  return text;
}

std::string summary(const SearchResult& result, const cost::DescribedModel& model) {
  std::string text = "  rank   seconds  memory GiB  strategy\n";
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const Candidate& candidate = result.best[i];
    const auto reason = not_runnable(candidate, model);
    text += line(
        "  %4zu  %8.4f  %10.2f  %s%s",
        i + 1,
        candidate.seconds(),
        candidate.cost.needed_bytes() / kGib,
        headline(candidate.strategy).c_str(),
        (nodes_text(candidate) + (reason ? "  (only priced: " + *reason + ")" : "")).c_str());
  }
  if (result.prefers_simplest) {
    text += line(
        "  the first is the simplest of those within %.0f %% of the fastest, which a probe does "
        "not tell apart",
        100 * kToldApart);
  }
  if (result.lower_bound > 0 && !result.best.empty()) {
    const bool turns = std::any_of(result.best.begin(), result.best.end(), is_in_turns);
    const bool unlike = std::any_of(result.best.begin(), result.best.end(), has_unlike_replicas);
    text += line(
        "  lower bound %.4f s by estimate%s, whatever the placement and the cuts",
        result.lower_bound,
        turns && unlike ? " of one stage a rank and equal replicas"
        : turns         ? " of one stage a rank"
        : unlike        ? " of equal replicas"
                        : "");
    text.pop_back();
    if (!is_in_turns(result.best.front()) && !has_unlike_replicas(result.best.front())) {
      const double gap = result.gap();
      // Seconds are sums of many parts, whose order rounds differently.
      constexpr double kRounding = 1e-9;
      text += gap <= kRounding ? ": the first is the optimum"
                               : line(
                                     ": the first, %.4f s by estimate, is %.1f %% above it at most",
                                     result.best.front().cost.seconds,
                                     100 * gap);
      text.erase(text.find_last_not_of('\n') + 1);
    }
    text += "\n";
  }
  return text;
}

std::string front_text(const SearchResult& result, const cost::Cluster& cluster) {
  std::string text;
  for (const Candidate& candidate : result.front) {
    const StepCosts costs = step_costs(candidate, cluster);
    text += line(
        "  front: %.4f s  price %.6g  %.6g J  %s%s",
        costs.seconds,
        costs.price,
        costs.joules,
        headline(candidate.strategy).c_str(),
        nodes_text(candidate).c_str());
  }
  return text;
}

} // namespace tessera::planner
