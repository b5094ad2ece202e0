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
