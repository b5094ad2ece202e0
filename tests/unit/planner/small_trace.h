#pragma once

// The traces of a small language model, and a measured cluster that it is priced on.

#include <string>
#include <utility>
#include <vector>

#include "tessera/planner/traced_model.h"

namespace tessera::planner {

// A language model: embedding and head share a weight, `blocks` blocks between.
inline ModelTrace small_language_model(int blocks) {
  ModelTrace model;
  graph::ModelGraph& graph = model.graph;
  graph.name = "small";
  graph.traced = true;
  const auto add = [&](const std::string& path,
                       const std::string& type,
                       int parent,
                       std::vector<int> parameters) {
    graph::Module module;
    module.path = path;
    module.type = type;
    module.parent = parent;
    module.parameters = std::move(parameters);
    module.calls = 1;
    module.first_call = static_cast<int>(graph.modules.size());
    module.returned_bytes = 400; // of one sample
    graph.modules.push_back(module);
    const int index = static_cast<int>(graph.modules.size()) - 1;
    if (parent >= 0) {
      graph.modules[static_cast<std::size_t>(parent)].children.push_back(index);
    }
    return index;
  };
  const auto parameter = [&](const std::string& name, std::int64_t elements) {
    graph.parameters.push_back({name, {elements}, "float32", elements, 4 * elements});
    return static_cast<int>(graph.parameters.size()) - 1;
  };
  const int weight = parameter("wte.weight", 1000);
  const int root = add("", "Net", -1, {});
  const int embedding = add("wte", "Embedding", root, {weight});
  const int list = add("h", "Sequential", root, {});
  std::vector<int> made;
  for (int i = 0; i < blocks; ++i) {
    const std::string path = "h." + std::to_string(i);
    made.push_back(add(path, "Block", list, {parameter(path + ".weight", 500)}));
  }
  const int head = add("head", "Tied", root, {weight});
  const auto work = [&](double batch) {
    graph::ForwardWork forward;
    const auto move = [&](int module, double elements) {
      graph::OperatorWork one;
      one.name = "aten::add";
      one.module = module;
      one.elements = elements * batch;
      one.bytes = 4 * one.elements;
      one.kept_bytes = 3 * one.elements;
      one.gradient_bytes = one.bytes;
      forward.push_back(one);
    };
    move(embedding, 1e6);
    for (const int block : made) {
      move(block, 4e6);
    }
    move(head, 2e6);
    return forward;
  };
  model.one_sample = work(1);
  model.two_samples = work(2);
  model.global_batch_size = 8;
  return model;
}

// The same model as each of two ranks with samples of their own holds it: half of every block, the
// embedding whole; a block gathers the samples of both, of so many bytes for a sample, and sums
// parts of the result.
inline DivisionTrace half_of(const ModelTrace& whole, double exchanged_bytes = 400) {
  DivisionTrace division;
  division.way = {2, cost::Distribution::kSpeed, false};
  division.samples = 2;
  division.graph = whole.graph;
  division.whole = {"wte.weight"};
  for (graph::Parameter& parameter : division.graph.parameters) {
    if (parameter.name != "wte.weight") {
      parameter.elements /= 2;
    }
  }
  const auto work = [&](double batch) {
    graph::ForwardWork forward;
    for (const graph::OperatorWork& one : batch == 1 ? whole.one_sample : whole.two_samples) {
      const auto collective = [&](const char* name, double bytes) {
        graph::OperatorWork exchange;
        exchange.name = name;
        exchange.module = one.module;
        exchange.kind = graph::OperatorWork::Kind::kCollective;
        exchange.ranks = 2;
        exchange.bytes = bytes * batch;
        forward.push_back(exchange);
      };
      const bool block = whole.graph.modules[static_cast<std::size_t>(one.module)].type == "Block";
      if (block) {
        collective("all_gather", exchanged_bytes);
      }
      forward.push_back(one); // half of two samples
      if (block) {
        collective("reduce_scatter", 2 * exchanged_bytes);
      }
    }
    return forward;
  };
  division.least = work(1);
  division.twice = work(2);
  return division;
}

// A million elements take a millisecond.
inline cost::Cluster measured_cluster(int ranks) {
  cost::Cluster cluster;
  cluster.name = "here";
  cluster.measured = true;
  cost::DeviceKind kind;
  kind.name = "cpu";
  kind.memory_bytes = 1e9;
  kind.speed.moves = {{1, 1e-9}, {1e6, 1e-3}};
  kind.speed.functions = kind.speed.random = kind.speed.moves;
  kind.speed.products["f32"] = {{1, 1e-9}};
  cluster.kinds.push_back(kind);
  cluster.nodes.push_back({.kind = 0, .count = ranks, .intra_bytes_per_s = 1e9});
  return cluster;
}

} // namespace tessera::planner
