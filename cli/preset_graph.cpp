#include "cli/preset_graph.h"

#include "tessera/base/error.h"

namespace tessera::cli {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list; // the program has no models yet
  return list;
}

graph::ModelGraph graph_of_preset(const std::string& name) {
  throw ConfigError(
      str("--model: found \"",
          name,
          "\", but this program was built without the model registry; write "
          "--graph FILE.json with the graph of a model instead"));
}

} // namespace tessera::cli
