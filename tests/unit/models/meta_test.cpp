#include <gtest/gtest.h>

#include "tessera/deferred_init/delayed_init.h"
#include "tessera/tracer/trace.h"

#include "models/registry.h"

namespace tessera::models {
namespace {

class EveryPreset : public testing::TestWithParam<Preset> {};

// Up to 175 billion parameters: no weight may be allocated.
TEST_P(EveryPreset, IsBuiltAndTracedWithoutItsWeights) {
  const Preset& preset = GetParam();
  const tracer::DelayedInitScope delayed;
  const AnyModel model = make_model(preset);
  EXPECT_TRUE(tracer::has_delayed(*model.module));
  const auto inputs = model.sample_inputs({0, 0, 0});
  const auto graph =
      tracer::trace(*model.module, [&] { model.forward(inputs); }, {.name = preset.name});
  EXPECT_TRUE(graph.traced);
  std::int64_t elements = 0;
  for (const auto& parameter : graph.parameters) {
    elements += parameter.elements;
  }
  EXPECT_EQ(elements, preset.parameters);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryPreset, testing::ValuesIn(presets()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) {
    c = c == '-' || c == '.' ? '_' : c;
  }
  return name;
});

} // namespace
} // namespace tessera::models
