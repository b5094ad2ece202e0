#include "tessera/base/error.h"
#include "tessera/graph/model_graph.h"

#include "tests/fuzz/fuzz.h"
#include "tests/unit/graph/graph_builder.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  std::mt19937 random(3);
  std::vector<std::string> texts;
  for (const int size : {1, 2, 4, 7}) {
    texts.push_back(graph::to_json(graph::random_graph(random, size)));
  }
  return texts;
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const graph::ModelGraph graph = graph::model_graph_from_json(text);
    const std::string written = graph::to_json(graph);
    if (graph::to_json(graph::model_graph_from_json(written)) != written) {
      fuzz::broken("what was accepted is written as it was read");
    }
    const graph::ModuleTree tree = graph::build_module_tree(graph);
    if (tree.node_of_module.size() != graph.modules.size()) {
      fuzz::broken("every module has a node");
    }
    fuzz::count(true);
  } catch (const PlanError&) {
    fuzz::count(false);
  }
  return 0;
}
