#include "cli/preset_graph.h"

#include "tessera/base/error.h"

#include "models/presets.h"

namespace tessera::cli {

graph::ModelGraph graph_of_preset(const std::string& name) {
  throw ConfigError(
      str("--model: \"",
          models::find_preset(name).name,
          "\" cannot be traced by this program, which was built without the "
          "tracer; write --graph FILE.json with the graph of a model instead"));
}

} // namespace tessera::cli
