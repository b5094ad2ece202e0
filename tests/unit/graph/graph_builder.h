#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tessera/graph/model_graph.h"

namespace tessera::graph {

/// Writes model graphs by hand: modules in pre-order, the root is there.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string name = "model") {
    graph_.name = std::move(name);
    graph_.modules.emplace_back();
    graph_.modules[0].type = "Root";
  }

  /// Adds a module below `parent`, which must be the last module or one of the
  /// modules above it; returns its index.
  int add(int parent, const std::string& name) {
    const int index = static_cast<int>(graph_.modules.size());
    Module module;
    const std::string& above = graph_.modules[parent].path;
    module.path = above.empty() ? name : above + "." + name;
    module.type = "Layer";
    module.parent = parent;
    graph_.modules[parent].children.push_back(index);
    graph_.modules.push_back(std::move(module));
    return index;
  }

  /// Adds a float32 parameter to a module; returns its index for `share`.
  int parameter(int module, const std::string& name, std::int64_t elements) {
    const std::string& path = graph_.modules[module].path;
    graph_.parameters.push_back(
        {path.empty() ? name : path + "." + name, {elements}, "float32", elements, 4 * elements});
    const int index = static_cast<int>(graph_.parameters.size()) - 1;
    share(module, index);
    return index;
  }

  void share(int module, int parameter) {
    graph_.modules[module].parameters.push_back(parameter);
  }

  /// A module with one parameter of its own.
  int leaf(int parent, const std::string& name, std::int64_t elements) {
    const int index = add(parent, name);
    parameter(index, "weight", elements);
    return index;
  }

  Module& operator[](int module) {
    return graph_.modules[module];
  }
  ModelGraph& graph() {
    return graph_;
  }

 private:
  ModelGraph graph_;
};

/// A random tree of `size` modules with some shared parameters, some modules
/// without any, and a trace that reaches some of them in a random order.
inline ModelGraph random_graph(std::mt19937& random, int size) {
  const auto below = [&random](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  GraphBuilder builder("random");
  std::vector<int> open = {0};
  for (int i = 1; i < size; ++i) {
    open.resize(1 + below(static_cast<int>(open.size())));
    open.push_back(builder.add(open.back(), std::to_string(i)));
  }
  for (int i = 0; i < size; ++i) {
    for (int n = below(3); n > 0; --n) {
      builder.parameter(i, "p" + std::to_string(n), 1 + below(1000));
    }
    const int parameters = static_cast<int>(builder.graph().parameters.size());
    if (parameters > 0 && below(5) == 0) {
      const int shared = below(parameters);
      auto& own = builder[i].parameters;
      if (std::find(own.begin(), own.end(), shared) == own.end()) {
        builder.share(i, shared);
      }
    }
    builder[i].activation_bytes = below(2000);
    if (below(4) > 0) {
      builder[i].calls = 1 + below(2);
      builder[i].first_call = below(2 * size);
      builder[i].forward_seconds = 1e-3 * below(100);
    }
  }
  builder.graph().traced = true;
  builder.graph().timed = below(2) == 0;
  return builder.graph();
}

} // namespace tessera::graph
