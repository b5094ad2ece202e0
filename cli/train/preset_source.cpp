#include "cli/train/preset_source.h"

#include <memory>

#include <torch/torch.h>

#include "tessera/nn/replace/replace.h"

#include "models/registry.h"

namespace tessera::cli {

namespace {

// Shapes and types of each family's targets (models/registry.h).
models::Tensors targets_of(const models::Preset& preset, const models::Tensors& inputs) {
  if (preset.family == "t5") {
    return {inputs.at(1)};
  }
  if (preset.family == "ncf") {
    return {at::zeros_like(inputs.at(0), at::dtype(at::kFloat))};
  }
  return {inputs.at(0)};
}

} // namespace

cost::Precision precision_of(const std::string& text) {
  // Both 16-bit types have the same bytes, and products of one speed are measured.
  return text == "fp16" ? cost::Precision::kHalf : Choice<cost::Precision>(text).value();
}

autotune::ModelSource preset_source(const models::Preset& preset, std::int64_t sequence) {
  autotune::ModelSource source;
  source.name = preset.name;
  source.build = [preset, sequence] {
    const tensor_parallelism marked;
    const auto model = std::make_shared<models::AnyModel>(models::make_model(preset));
    autotune::BuiltModel built;
    built.root = model->module;
    built.forward = [model, sequence](std::int64_t samples) -> std::function<void()> {
      return [model, sequence, samples] {
        const models::Tensors inputs = model->sample_inputs({samples, sequence, 0});
        // As the program trains, which may compute the loss inside of the model.
        model->training_loss(inputs, targets_of(model->preset, inputs));
      };
    };
    return built;
  };
  return source;
}

} // namespace tessera::cli
