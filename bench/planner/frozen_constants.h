#pragma once

// Every constant that prices of published runs depend on, and which limits of accuracy break when
// one changes. docs/planner.md has their values and sources. Header only: `planner_runs` and the
// test of accuracy.

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tessera/cost/data_sheets.h"

#include "bench/planner/accuracy_limits.h"
#include "bench/planner/amp_paper.h"
#include "bench/planner/megatron_runs.h"
#include "bench/planner/smp_runs.h"

namespace tessera::bench {

/// One constant, which `change` multiplies: a property of devices and software, or of what
/// clusters' files say.
struct FrozenConstant {
  const char* name;
  std::function<void(cost::Constants&, cost::Cluster&, double factor)> change;
  /// Whether only the AMP paper's runs see it, whose inputs are no part of the tree.
  bool only_amp = false;
  /// By what it changes. Numbers of nodes are doubled and halved, as those of the runs are.
  double less = 0.75;
  double more = 1.25;
};

namespace frozen {

inline FrozenConstant of_field(const char* name, double cost::Constants::*field) {
  return {name, [field](cost::Constants& constants, cost::Cluster&, double factor) {
            constants.*field *= factor;
          }};
}

inline FrozenConstant only_of_amp(const char* name, double cost::Constants::*field) {
  FrozenConstant constant = of_field(name, field);
  constant.only_amp = true;
  return constant;
}

/// Of all devices, or of those whose name begins so.
inline FrozenConstant of_devices(
    const char* name,
    const std::function<void(cost::DeviceKind&, double)>& change,
    const std::string& devices = "") {
  return {name, [change, devices](cost::Constants&, cost::Cluster& cluster, double factor) {
            for (cost::DeviceKind& kind : cluster.kinds) {
              if (kind.name.starts_with(devices)) {
                change(kind, factor);
              }
            }
          }};
}

inline FrozenConstant of_nodes(const char* name, double cost::Node::*field) {
  return {name, [field](cost::Constants&, cost::Cluster& cluster, double factor) {
            for (cost::Node& node : cluster.nodes) {
              node.*field *= factor;
            }
          }};
}

inline FrozenConstant of_clusters(const char* name, double cost::Cluster::*field) {
  return {name, [field](cost::Constants&, cost::Cluster& cluster, double factor) {
            cluster.*field *= factor;
          }};
}

/// Known as far as numbers of nodes tell it, each of which is twice the one before.
inline FrozenConstant to_a_factor_of_two(FrozenConstant constant) {
  constant.less = 0.5;
  constant.more = 2;
  return constant;
}

inline void change_products(cost::DeviceKind& kind, double factor) {
  if (kind.memory_bytes_per_s > 0) {
    kind.product_flops_per_s = factor * cost::product_flops(kind, cost::Precision::kHalf);
  }
}

} // namespace frozen

inline std::vector<FrozenConstant> frozen_constants() {
  using namespace frozen;
  using cost::Cluster;
  using cost::Constants;
  using cost::DeviceKind;
  using cost::Node;
  return {
      of_field("operators of a layer", &Constants::transformer_operators),
      of_field("link efficiency", &Constants::link_efficiency),
      of_field("link latency", &Constants::link_latency_seconds),
      of_field("rate of trees", &Constants::tree_bandwidth_share),
      of_field("optimizer traffic", &Constants::optimizer_traffic_bytes),
      of_field("memory efficiency", &Constants::memory_efficiency),
      of_field("gradient on the wire", &Constants::gradient_wire_bytes),
      of_field("gradient bucket", &Constants::gradient_bucket_bytes),
      only_of_amp("copies of gradients", &Constants::gradient_copies_bytes),
      only_of_amp("usable memory, measured models", &Constants::usable_memory_share),
      of_field("context", &Constants::context_bytes),
      of_field("logits", &Constants::logit_bytes),
      only_of_amp("working set, whole", &Constants::whole_working_bytes),
      only_of_amp("working set, divided", &Constants::divided_working_bytes),
      of_field("kept scores", &Constants::score_bytes),
      of_field("attention", &Constants::attention_share),
      of_field("written scores, forward", &Constants::score_forward_bytes),
      of_field("written scores, backward", &Constants::score_backward_bytes),
      of_field("written scores, fused, forward", &Constants::fused_score_forward_bytes),
      of_field("written scores, fused, backward", &Constants::fused_score_backward_bytes),
      of_field("traffic of the loss", &Constants::loss_traffic_bytes),
      of_field("traffic of metrics", &Constants::metric_traffic_bytes),
      of_field("traffic of sums", &Constants::accumulation_traffic_bytes),
      of_field("gradient sum", &Constants::gradient_sum_bytes),
      of_field("usable memory, models of sizes", &Constants::packed_memory_share),
      of_field("latency inside a node", &Constants::device_latency_seconds),
      of_devices("products on Hoppers", change_products, "h100"),
      of_devices("products on A100s", change_products, "a100"),
      of_devices("launch", [](DeviceKind& kind, double factor) { kind.launch_seconds *= factor; }),
      of_devices(
          "offloading", [](DeviceKind& kind, double factor) { kind.host_bytes_per_s *= factor; }),
      of_nodes("network latency", &Node::network_latency_seconds),
      of_nodes("network", &Node::inter_bytes_per_s),
      of_nodes("links inside a node", &Node::intra_bytes_per_s),
      of_clusters("busy start", &Cluster::busy_start_seconds),
      of_clusters("busy start over nodes", &Cluster::busy_network_start_seconds),
      to_a_factor_of_two(of_clusters("stalling share", &Cluster::stalling_share)),
      to_a_factor_of_two(
          {"nodes of groups that stall",
           [](Constants&, Cluster& cluster, double factor) {
             cluster.stalling_group_nodes =
                 static_cast<int>(std::lround(cluster.stalling_group_nodes * factor));
           }}),
      of_clusters("stall", &Cluster::stall_seconds)};
}

/// The folders of the runs; an empty one has none.
struct AccuracyRuns {
  std::string published;
  std::string smp;
  std::string megatron;
  std::string amp;
};

/// Returns the limits that break when a constant is multiplied: those of the first runs that break
/// any; empty: none.
inline std::vector<std::string>
broken_by(const FrozenConstant& constant, double factor, const AccuracyRuns& runs) {
  cost::Constants constants;
  cost::Cluster nothing;
  constant.change(constants, nothing, factor);
  const auto change_cluster = [&](cost::Cluster& cluster) {
    cost::Constants other;
    constant.change(other, cluster, factor);
  };
  std::vector<std::string> broken;
  for (const char* only : {"llama_1b", "llama_8b", "mpt_"}) {
    if (broken.empty()) {
      broken = broken_limits(
          published_runs(runs.published, constants, change_cluster, only), accuracy_limits());
    }
  }
  if (broken.empty()) {
    broken = broken_smp_limits(runs.smp, constants, change_cluster);
  }
  if (broken.empty()) {
    broken = broken_megatron_limits(runs.megatron, constants, change_cluster);
  }
  if (broken.empty() && !runs.amp.empty()) {
    broken = broken_amp_limits(amp_runs(runs.amp, constants, change_cluster));
  }
  return broken;
}

} // namespace tessera::bench
