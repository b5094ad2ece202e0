// Slowing a link never lowers the price of a strategy; what holds for its simulation.

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "tessera/simulator/simulate.h"

#include "tests/unit/cost/small_cases.h"
#include "tests/unit/simulator/chance.h"

namespace tessera::simulator {
namespace {

/// Draws models, clusters and strategies of at most a dozen devices.
class Draw : public Chance {
 public:
  using Chance::Chance;

  /// Evenly on a logarithmic scale.
  double scale(double least, double most) {
    return least * std::pow(most / least, std::uniform_real_distribution<double>(0, 1)(random_));
  }

  cost::Cluster cluster() {
    cost::Cluster cluster = cost::small_cluster(from(1, 3), from(0, 2));
    const int nodes = static_cast<int>(cluster.nodes.size());
    for (cost::DeviceKind& kind : cluster.kinds) {
      // Without it the links of the cluster say what a measured layer's time held (decision 104).
      kind.profiled_bytes_per_s = 1e9;
    }
    for (cost::Node& node : cluster.nodes) {
      node.count = from(1, 3);
      node.intra_bytes_per_s = scale(1e8, 1e10);
      node.inter_bytes_per_s = scale(1e7, 1e9);
      node.cores = one_in(3) ? from(1, node.count) : 0;
    }
    for (int a = 0; a < nodes; ++a) {
      for (int b = a + 1; b < nodes; ++b) {
        if (one_in(2)) {
          cluster.links.push_back({a, b, scale(1e6, 1e9)});
        }
      }
    }
    for (int i = from(-2, 3); i > 0 && nodes > 1; --i) {
      const int a = from(0, nodes - 2);
      cluster.collectives.push_back(
          {"all_reduce", from(2, 4), 2, 1e5, scale(1e-4, 1e-2), {a, from(a + 1, nodes - 1)}});
    }
    return cluster;
  }

  cost::Strategy strategy(const cost::Cluster& cluster, int layers, int batch, bool divisible) {
    const int devices = cluster.device_count();
    std::vector<cost::Strategy> all;
    for (int pp = 1; pp <= std::min(layers, devices); ++pp) {
      for (int dp = 1; dp <= devices; ++dp) {
        const int tp = devices / pp / dp;
        if (pp * dp * tp == devices && batch % dp == 0 && (tp == 1 || divisible)) {
          all.push_back(cost::small_strategy(pp, dp, tp, 1, layers));
        }
      }
    }
    if (all.empty()) {
      return {};
    }
    cost::Strategy one = all[static_cast<std::size_t>(from(0, static_cast<int>(all.size()) - 1))];
    if (one_in(2)) {
      std::shuffle(one.device_of_rank.begin(), one.device_of_rank.end(), random_);
    }
    one.schedule = one_in(3) ? cost::Schedule::kSimple : cost::Schedule::kInterleaved;
    one.active_microbatches = one_in(2) ? one.pp + from(0, 2) : 0;
    one.overlap_gradients = one_in(2);
    return one;
  }

  cost::DescribedModel model(bool traced) {
    const int layers = from(1, 6);
    cost::DescribedModel model =
        cost::small_model(layers, 0.3, one_in(2) ? "transformer_layer" : "other");
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      model.layers[i].parameters = from(0, 1'000'000);
      model.layers[i].output_elements_per_sample = static_cast<int>(scale(1e2, 1e6));
      for (auto& [device, by_degree] : model.measured().layers[i].forward_seconds_per_sample) {
        for (int degree = 1; degree <= 15; ++degree) {
          by_degree[degree] = by_degree[1] / degree;
        }
      }
    }
    if (layers > 1 && one_in(3)) {
      model.layers.back().parameters = 0;
      model.layers.back().shares_parameters_with = "layer.0";
    }
    if (traced) {
      returns_home(model);
    }
    return model;
  }

  /// Replaces the measured times by sizes.
  void by_sizes(cost::DescribedModel& model) {
    constexpr int kSequence = 16;
    for (cost::Layer& layer : model.layers) {
      layer.output_elements_per_sample = kSequence * from(8, 512);
      layer.kind = "transformer_layer";
    }
    model.source = cost::SizedModel{
        .sequence_length = kSequence, .num_attention_heads = 16, .vocabulary_size = 1};
  }

  /// Slows one link of the cluster, and says which.
  std::string slow_a_link(cost::Cluster& cluster) {
    const int nodes = static_cast<int>(cluster.nodes.size());
    const double factor = scale(1.01, 300);
    const int first = from(0, nodes - 1);
    cost::Node& node = cluster.nodes[static_cast<std::size_t>(first)];
    if (nodes == 1 || one_in(4)) {
      node.intra_bytes_per_s /= factor;
      return "inside node " + std::to_string(first);
    }
    if (one_in(3)) {
      node.inter_bytes_per_s /= factor;
      return "network of node " + std::to_string(first);
    }
    const int second = (first + from(1, nodes - 1)) % nodes;
    const double slower = cluster.between(first, second) / factor;
    std::erase_if(cluster.links, [&](const cost::NodeLink& link) {
      return std::minmax(link.first, link.second) == std::minmax(first, second);
    });
    cluster.links.push_back({first, second, slower});
    return "link " + std::to_string(first) + " - " + std::to_string(second);
  }

 private:
  /// Makes a traced model of the same layers, whose output returns to stage 0.
  static void returns_home(cost::DescribedModel& model) {
    cost::TracedModel traced;
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      cost::TracedLayer layer;
      layer.microbatch_seconds["fast"][1] = {1e-3, 2e-3};
      layer.microbatch_seconds["slow"][1] = {2e-3, 4e-3};
      traced.whole.layers.push_back(layer);
      model.layers[i].shares_parameters_with = "";
    }
    traced.whole.tail_seconds["fast"][1] = {0.6e-3, 1.2e-3};
    traced.whole.tail_seconds["slow"][1] = {1.2e-3, 2.4e-3};
    model.source = traced;
    model.returns_home = true;
  }
};

struct Case {
  cost::DescribedModel model;
  cost::Cluster cluster;
  cost::Strategy strategy;
  cost::Cluster slowed;
  std::string which;

  std::string text() const {
    return which + ", pp " + std::to_string(strategy.pp) + " dp " + std::to_string(strategy.dp) +
           " tp " + std::to_string(strategy.tp);
  }
};

/// Adds switches above the nodes, one of which may be what is slowed, and network cards.
void add_levels(Case& one, unsigned seed) {
  Draw draw(seed + 7'000'003);
  const int nodes = static_cast<int>(one.cluster.nodes.size());
  std::vector<cost::NodeGroup> groups;
  if (nodes > 1 && draw.one_in(2)) {
    const int first = draw.from(0, nodes - 2);
    groups.push_back({{first, first + 1}, draw.scale(1e6, 1e9)});
    groups.push_back({{first}, draw.scale(1e6, 1e9)}); // a switch below it
  }
  for (int n = 0; n < nodes; ++n) {
    const int cards = draw.one_in(3) ? draw.from(1, 3) : 0;
    for (cost::Cluster* cluster : {&one.cluster, &one.slowed}) {
      cluster->groups = groups;
      cluster->nodes[static_cast<std::size_t>(n)].network_cards = cards;
    }
  }
  if (!groups.empty() && draw.one_in(4)) {
    one.slowed = one.cluster;
    const int slowed = draw.from(0, 1);
    one.slowed.groups[static_cast<std::size_t>(slowed)].bytes_per_s /= draw.scale(1.01, 300);
    one.which = "switch " + std::to_string(slowed);
  }
}

/// Returns nothing for a seed whose devices no strategy fills.
std::optional<Case> draw(unsigned seed) {
  Draw draw(seed);
  const bool traced = draw.one_in(4);
  Case one;
  one.model = draw.model(traced);
  one.model.global_batch_size = 12;
  one.cluster = draw.cluster();
  const int layers = static_cast<int>(one.model.layers.size());
  one.strategy = draw.strategy(one.cluster, layers, 12, !traced);
  if (one.strategy.device_of_rank.empty()) {
    return std::nullopt;
  }
  one.slowed = one.cluster;
  one.which = draw.slow_a_link(one.slowed);
  add_levels(one, seed);
  return one;
}

/// Adds to a case what else a price knows: models of sizes, divided in three ways, and bounds of
/// single streams, one of which may be what is slowed.
void widen(Case& one, unsigned seed) {
  Draw draw(seed + 1'000'003);
  for (std::size_t kind = 0; kind < one.cluster.kinds.size(); ++kind) {
    const double flops = draw.scale(1e9, 1e12);
    const double profiled = draw.scale(1e8, 1e10);
    for (cost::Cluster* cluster : {&one.cluster, &one.slowed}) {
      cluster->kinds[kind].product_flops_per_s = flops;
      cluster->kinds[kind].profiled_bytes_per_s = profiled;
    }
  }
  for (std::size_t n = 0; n < one.cluster.nodes.size(); ++n) {
    const double bound = draw.one_in(3) ? draw.scale(1e6, 1e9) : 0;
    one.cluster.nodes[n].stream_bytes_per_s = bound;
    one.slowed.nodes[n].stream_bytes_per_s = bound;
  }
  if (one.model.traced() != nullptr) {
    return;
  }
  if (draw.one_in(3)) {
    draw.by_sizes(one.model);
    constexpr cost::Distribution kWays[] = {
        cost::Distribution::kAsMeasured, cost::Distribution::kSpeed, cost::Distribution::kMesh};
    one.strategy.distribution = kWays[draw.from(0, 2)];
  }
  if (draw.one_in(6)) {
    const int n = draw.from(0, static_cast<int>(one.cluster.nodes.size()) - 1);
    one.slowed = one.cluster;
    cost::Node& node = one.slowed.nodes[static_cast<std::size_t>(n)];
    node.stream_bytes_per_s = cost::stream_bytes_per_s(node) / draw.scale(1.01, 300);
    one.which = "streams of node " + std::to_string(n);
  }
}

constexpr double kRounding = 1e-9;

TEST(SlowerLinks, NeverLowerAPrice) {
  int priced = 0;
  int dearer = 0;
  int switches = 0;
  int inside = 0; // slower links inside nodes under divided layers that were measured
  for (unsigned seed = 0; seed < 16000; ++seed) {
    auto one = draw(seed);
    if (!one) {
      continue;
    }
    widen(*one, seed);
    inside += one->which.starts_with("inside") && one->strategy.tp > 1 &&
                      std::holds_alternative<cost::MeasuredModel>(one->model.source)
                  ? 1
                  : 0;
    switches += one->which.starts_with("switch") ? 1 : 0;
    const double before = cost::price(one->model, one->cluster, one->strategy).seconds;
    const double after = cost::price(one->model, one->slowed, one->strategy).seconds;
    EXPECT_GE(after, before * (1 - kRounding)) << seed << ": " << one->text();
    ++priced;
    dearer += after > before * 1.001 ? 1 : 0;
  }
  EXPECT_GT(priced, 10000);
  EXPECT_GT(switches, 500);
  EXPECT_GT(inside, 500);
  EXPECT_GT(dearer, priced / 5); // most links matter to no strategy, but many do
}

// How many simulations a slower link changed, and how.
struct Changes {
  int simulated = 0;
  int slower = 0;
  int faster = 0;
  double most_gained = 0; // as a share of the time before
};

Changes simulate_all(unsigned seeds, int least_stages, int most_stages) {
  Changes changes;
  SimulationOptions options;
  options.keep_events = false;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    const auto one = draw(seed);
    if (!one || one->strategy.pp < least_stages || one->strategy.pp > most_stages) {
      continue;
    }
    const auto seconds = [&](const cost::Cluster& cluster) {
      return simulate(one->model, cluster, one->strategy, options).iteration_seconds;
    };
    const double before = seconds(one->cluster);
    const double after = seconds(one->slowed);
    ++changes.simulated;
    changes.slower += after > before * 1.001 ? 1 : 0;
    if (after < before * (1 - kRounding)) {
      ++changes.faster;
      changes.most_gained = std::max(changes.most_gained, 1 - after / before);
    }
  }
  return changes;
}

TEST(SlowerLinks, NeverSpeedUpTheSimulationOfOneStage) {
  const Changes changes = simulate_all(4000, 1, 1);
  EXPECT_EQ(changes.faster, 0) << changes.most_gained;
  EXPECT_GT(changes.simulated, 1500);
  EXPECT_GT(changes.slower, changes.simulated / 5);
}

// Stages run what is ready, so that what arrives later can change their order for the better
// (decision 85): seldom, and by little.
TEST(SlowerLinks, SeldomSpeedUpTheSimulationOfAPipeline) {
  const Changes changes = simulate_all(6000, 2, 15);
  EXPECT_GT(changes.simulated, 1000);
  EXPECT_GT(changes.slower, changes.simulated / 2);
  EXPECT_LT(changes.faster, changes.simulated / 50);
  EXPECT_LT(changes.most_gained, 0.125);
}

} // namespace
} // namespace tessera::simulator
