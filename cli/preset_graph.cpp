#include "cli/preset_graph.h"

#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/tracer/delayed_init.h"
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
  const auto& preset = models::find_preset(name);
  const tracer::DelayedInitScope delayed;
  const auto model = models::make_model(preset);
  const auto inputs = model.sample_inputs({0, 0, 0});
  return tracer::trace(
      *model.module, [&] { model.forward(inputs); }, {.name = name});
}

} // namespace tessera::cli
