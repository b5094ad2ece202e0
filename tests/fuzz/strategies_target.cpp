#include "tessera/base/error.h"
#include "tessera/planner/description.h"
#include "tessera/planner/strategies_csv.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

namespace {

constexpr const char* kModel =
    R"({"name": "m", "global_batch_size": 8, "sequence_length": 16, "num_attention_heads": 2,
        "precision": "fp16 parameters", "activation_checkpointing": "every layer",
        "layers": [
         {"name": "a", "kind": "embedding", "parameters": 10, "output_elements_per_sample": 4,
          "forward_seconds_per_sample": {"t4": {"1": 0.5, "2": 0.25}}},
         {"name": "b", "kind": "other", "parameters": 5, "output_elements_per_sample": 4,
          "forward_seconds_per_sample": {"t4": {"1": 0.5, "2": 0.25}}},
         {"name": "c", "kind": "lm_head", "parameters": 0, "shares_parameters_with": "a",
          "output_elements_per_sample": 4,
          "forward_seconds_per_sample": {"t4": {"1": 0.5, "2": 0.25}}}]})";
constexpr const char* kCluster =
    R"({"name": "c", "devices": {"t4": {"memory_gib": 15}},
        "nodes": [{"device": "t4", "count": 4, "intra_node_gbit_per_s": 50,
                   "inter_node_gbit_per_s": 10}]})";

} // namespace

std::vector<std::string> seeds() {
  return {
      "pp,dp,tp,mbs,layer_boundaries\n2,2,1,2,[0;1;3]\n",
      "mbs,tp,dp,pp,placement,layer_boundaries,note\n1,2,1,2,PDT,[0;2;3],\"a, b\"\n"
      "4,1,2,2,DPT,[0;1;3],c\n"};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  static const cost::DescribedModel model = planner::model_from_json(fuzz::kModel, "model");
  static const cost::Cluster cluster = planner::cluster_from_json(fuzz::kCluster, "cluster");
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string priced = planner::price_table(text, "fuzz", model, cluster);
    if (priced.find("predicted_s") == std::string::npos) {
      fuzz::broken("a table has its prices");
    }
    fuzz::count(true);
  } catch (const ConfigError&) {
    fuzz::count(false);
  }
  return 0;
}
