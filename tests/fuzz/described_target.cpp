#include "tessera/base/error.h"
#include "tessera/planner/description.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  return {
      R"({"name": "m", "global_batch_size": 8, "sequence_length": 16, "num_attention_heads": 2,
          "precision": "fp16 parameters", "activation_checkpointing": "every layer",
          "layers": [
           {"name": "a", "kind": "embedding", "parameters": 10, "output_elements_per_sample": 4,
            "forward_seconds_per_sample": {"t4": {"1": 0.5, "2": 0.25}}},
           {"name": "b", "kind": "lm_head", "parameters": 0, "shares_parameters_with": "a",
            "output_elements_per_sample": 4, "forward_seconds_per_sample": {"t4": {"1": 0.5}}}]})",
      R"({"name": "c", "devices": {"t4": {"memory_gib": 15}},
          "nodes": [{"device": "t4", "count": 4, "intra_node_gbit_per_s": 50,
                     "inter_node_gbit_per_s": 10},
                    {"device": "t4", "count": 2, "intra_node_gbit_per_s": 50,
                     "inter_node_gbit_per_s": 10, "network_cards": 2}],
          "links": [{"nodes": [0, 1], "gbit_per_s": 5}],
          "groups": [{"nodes": [0], "gbit_per_s": 4}, {"nodes": [0, 1], "gbit_per_s": 3}]})"};
}

} // namespace tessera::fuzz

// A described model or a described cluster: the input is read as both.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  bool accepted = false;
  try {
    const cost::DescribedModel model = planner::model_from_json(text, "fuzz");
    if (model.layers.empty() || model.shared_with().size() != model.layers.size()) {
      fuzz::broken("a model has layers, each with at most one that it shares with");
    }
    accepted = true;
  } catch (const ConfigError&) {
    accepted = false;
  }
  try {
    const cost::Cluster cluster = planner::cluster_from_json(text, "fuzz");
    const std::string written = planner::cluster_to_json(cluster);
    if (planner::cluster_to_json(planner::cluster_from_json(written, "again")) != written) {
      fuzz::broken("what was accepted is written as it was read");
    }
    accepted = true;
  } catch (const ConfigError&) {
    accepted = accepted || false;
  }
  fuzz::count(accepted);
  return 0;
}
