#include "cli/preset_model.h"

#include <functional>

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/tracer/delayed_init.h"
#include "tessera/tracer/record_work.h"
#include "tessera/tracer/trace.h"

#include "models/registry.h"

namespace tessera::cli {

namespace {

// Shapes and types of each family's targets (models/registry.h).
models::Tensors targets_of(
    const models::Preset& preset,
    const models::Tensors& inputs) {
  if (preset.family == "t5") {
    return {inputs.at(1)};
  }
  if (preset.family == "ncf") {
    return {at::zeros_like(inputs.at(0), at::dtype(at::kFloat))};
  }
  return {inputs.at(0)};
}

} // namespace

planner::TracedModel trace_preset(
    const models::Preset& preset,
    const PresetRun& run) {
  const tracer::DelayedInitScope delayed;
  const models::AnyModel model = models::make_model(preset);
  if (run.precision == "bf16") {
    model.module->to(torch::kBFloat16);
  }
  const auto forward_of = [&](std::int64_t batch) -> std::function<void()> {
    return [&model, &preset, batch, sequence = run.sequence] {
      const models::Tensors inputs = model.sample_inputs({batch, sequence, 0});
      model.loss(model.forward(inputs), targets_of(preset, inputs));
    };
  };
  planner::TracedModel traced;
  traced.precision = run.precision;
  traced.global_batch_size = run.global_batch_size;
  traced.graph =
      tracer::trace(*model.module, forward_of(1), {.name = preset.name});
  traced.one_sample = tracer::record_work(*model.module, forward_of(1));
  traced.two_samples = tracer::record_work(*model.module, forward_of(2));
  return traced;
}

} // namespace tessera::cli
