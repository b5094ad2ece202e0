#include "cli/partition/preset_graph.h"

#include <cstdio>

#include "tessera/autotune/lone_group.h"
#include "tessera/base/error.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/nn/replace/replace.h"
#include "tessera/tracer/trace.h"

#include "models/registry.h"

namespace tessera::cli {

namespace {

// "175 B", "3.1 M"
std::string count_text(std::int64_t count) {
  const auto value = static_cast<double>(count);
  char text[32];
  if (value >= 1e9) {
    std::snprintf(text, sizeof(text), "%.3g B", value / 1e9);
  } else {
    std::snprintf(text, sizeof(text), "%.3g M", value / 1e6);
  }
  return text;
}

} // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = [] {
    std::vector<Preset> made;
    for (const auto& preset : models::presets()) {
      made.push_back(
          {preset.name,
           str(preset.family,
               ", ",
               count_text(preset.parameters),
               " parameters, ",
               preset.description)});
    }
    return made;
  }();
  return list;
}

graph::ModelGraph graph_of_preset(const std::string& name) {
  return graph_of_preset(name, 1, "speed").graph;
}

DistributedGraph
graph_of_preset(const std::string& name, int tensor_parallel_degree, const std::string& optimize) {
  const auto& preset = models::find_preset(name);
  const tracer::DelayedInitScope delayed;
  models::AnyModel model;
  {
    const tensor_parallelism marked;
    model = models::make_model(preset);
  }
  const auto inputs = model.sample_inputs({0, 0, 0});
  autotune::LoneGroup group(tensor_parallel_degree);
  nn::TensorParallel parallel;
  parallel.group = &group;
  parallel.distribution =
      optimize == "memory" ? nn::Distribution::kMemory : nn::Distribution::kSpeed;
  parallel.shapes_only = true;
  const nn::TensorParallelScope scope(parallel);
  nn::Replacements replacements;
  replacements.root = model.module;
  DistributedGraph result;
  if (tensor_parallel_degree > 1) {
    replacements = nn::replace_marked(
        model.module, /*whole=*/{}, [](const torch::nn::Module&, const nn::Make& make) {
          return make();
        });
    nn::keep_parts_together(*replacements.root);
    result.replaced = nn::text_of(replacements);
  }
  result.graph = tracer::trace(*replacements.root, [&] { model.forward(inputs); }, {.name = name});
  return result;
}

} // namespace tessera::cli
