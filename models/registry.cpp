#include "models/registry.h"

#include <type_traits>
#include <utility>

#include <torch/torch.h>

#include "models/gpt.h"

namespace tessera::models {

namespace {

at::Device device_of(const torch::nn::Module& module) {
  return module.parameters().front().device();
}

void expect_inputs(
    const Preset& preset,
    const Tensors& inputs,
    std::size_t least,
    std::size_t most) {
  if (inputs.size() < least || inputs.size() > most) {
    throw ConfigError(
        str(preset.name,
            ": expected ",
            least,
            least == most ? str("") : str(" to ", most),
            " input tensors, found ",
            inputs.size()));
  }
}

// Different ids in each place; the same on every call.
at::Tensor sample_ids(
    at::IntArrayRef shape,
    std::int64_t vocabulary,
    const at::Device& device) {
  std::int64_t elements = 1;
  for (const auto size : shape) {
    elements *= size;
  }
  return at::arange(elements, at::dtype(at::kLong).device(device))
      .remainder(vocabulary)
      .view(shape);
}

SampleSize filled(SampleSize size, const SampleSize& preset) {
  const auto fill = [](std::int64_t& value, std::int64_t other) {
    value = value == 0 ? other : value;
  };
  fill(size.batch, preset.batch);
  fill(size.sequence, preset.sequence);
  fill(size.decoder_sequence, preset.decoder_sequence);
  return size;
}

void build(AnyModel& any, const GptOptions& options) {
  Gpt model(options);
  any.module = model.ptr();
  any.forward = [model, preset = any.preset](const Tensors& inputs) -> Tensors {
    expect_inputs(preset, inputs, 1, 1);
    return {model(inputs[0])};
  };
  any.sample_inputs = [model, preset = any.preset, options](SampleSize size) {
    size = filled(size, preset.sample);
    return Tensors{sample_ids(
        {size.batch, size.sequence}, options.vocab_size, device_of(*model))};
  };
  any.loss = [](const Tensors& outputs, const Tensors& targets) {
    return cross_entropy(outputs.at(0), targets.at(0));
  };
}

} // namespace

AnyModel make_model(const Preset& preset) {
  AnyModel any;
  any.preset = preset;
  build(any, std::get<GptOptions>(preset.options));
  return any;
}

AnyModel make_model(const std::string& name, const std::string& overrides) {
  return make_model(resolve_preset(name, overrides));
}

} // namespace tessera::models
