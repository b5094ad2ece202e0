#include "models/registry.h"

#include <utility>

#include <torch/torch.h>

#include "models/bert.h"
#include "models/decoder.h"
#include "models/gpt.h"
#include "models/ncf.h"
#include "models/published_state.h"
#include "models/t5.h"

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

at::Tensor optional(const Tensors& inputs, std::size_t index) {
  return index < inputs.size() ? inputs[index] : at::Tensor();
}

// Different ids in each place; the same on every call.
at::Tensor sample_ids(at::IntArrayRef shape, std::int64_t vocabulary, const at::Device& device) {
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

/// A model that continues a text: Gpt or Decoder.
template <typename Model>
void build_language_model(AnyModel& any, Model model, std::int64_t vocabulary) {
  any.module = model.ptr();
  any.forward = [model, preset = any.preset](const Tensors& inputs) -> Tensors {
    expect_inputs(preset, inputs, 1, 3);
    return {model(inputs[0], at::Tensor(), optional(inputs, 1), optional(inputs, 2))};
  };
  any.sample_inputs = [model, preset = any.preset, vocabulary](SampleSize size) {
    size = filled(size, preset.sample);
    return Tensors{sample_ids({size.batch, size.sequence}, vocabulary, device_of(*model))};
  };
  any.loss = [](const Tensors& outputs, const Tensors& targets) {
    return cross_entropy(outputs.at(0), targets.at(0));
  };
  any.training_loss = [model, preset = any.preset](const Tensors& inputs, const Tensors& targets) {
    expect_inputs(preset, inputs, 1, 3);
    return model(inputs[0], targets.at(0), optional(inputs, 1), optional(inputs, 2));
  };
}

void build(AnyModel& any, const GptOptions& options) {
  build_language_model(any, Gpt(options), options.vocab_size);
}

void build(AnyModel& any, const DecoderOptions& options) {
  build_language_model(any, Decoder(options), options.vocab_size);
}

void build(AnyModel& any, const T5Options& options) {
  T5 model(options);
  any.module = model.ptr();
  any.forward = [model, preset = any.preset](const Tensors& inputs) -> Tensors {
    expect_inputs(preset, inputs, 2, 4);
    return {model(inputs[0], inputs[1], optional(inputs, 2), optional(inputs, 3))};
  };
  any.sample_inputs = [model, preset = any.preset, options](SampleSize size) {
    size = filled(size, preset.sample);
    const auto device = device_of(*model);
    return Tensors{
        sample_ids({size.batch, size.sequence}, options.vocab_size, device),
        sample_ids({size.batch, size.decoder_sequence}, options.vocab_size, device)};
  };
  any.loss = [](const Tensors& outputs, const Tensors& targets) {
    return cross_entropy(outputs.at(0), targets.at(0));
  };
}

/// The loss of the masked tokens, and that of the pairs of sentences where they have targets.
at::Tensor with_pairs(
    const Preset& preset,
    const at::Tensor& masked,
    const at::Tensor& pairs,
    const Tensors& targets) {
  if (targets.size() < 2) {
    return masked;
  }
  if (!pairs.defined()) {
    throw ConfigError(
        str(preset.name,
            ": found targets for pairs of sentences, and next_sentence is false: the model has no "
            "head for them; leave them out"));
  }
  return masked + cross_entropy(pairs, targets[1]);
}

void build_bert(AnyModel& any, const BertOptions& options) {
  Bert model(options);
  any.module = model.ptr();
  any.forward = [model, preset = any.preset, both_heads = options.next_sentence](
                    const Tensors& inputs) -> Tensors {
    expect_inputs(preset, inputs, 1, 3);
    const auto outputs = model(inputs[0], optional(inputs, 1), optional(inputs, 2));
    if (!both_heads) {
      return {std::get<0>(outputs)};
    }
    return {std::get<0>(outputs), std::get<1>(outputs)};
  };
  any.loss = [preset = any.preset](const Tensors& outputs, const Tensors& targets) {
    const at::Tensor masked = cross_entropy(outputs.at(0), targets.at(0));
    return with_pairs(preset, masked, optional(outputs, 1), targets);
  };
  any.training_loss = [model, preset = any.preset](const Tensors& inputs, const Tensors& targets) {
    expect_inputs(preset, inputs, 1, 3);
    const auto outputs = model(inputs[0], optional(inputs, 1), optional(inputs, 2), targets.at(0));
    return with_pairs(preset, std::get<0>(outputs), std::get<1>(outputs), targets);
  };
}

void build_roberta(AnyModel& any, const BertOptions& options) {
  Roberta model(options);
  any.module = model.ptr();
  any.forward = [model, preset = any.preset](const Tensors& inputs) -> Tensors {
    expect_inputs(preset, inputs, 1, 2);
    return {model(inputs[0], optional(inputs, 1))};
  };
  any.loss = [](const Tensors& outputs, const Tensors& targets) {
    return cross_entropy(outputs.at(0), targets.at(0));
  };
}

void build(AnyModel& any, const BertOptions& options) {
  if (options.roberta) {
    build_roberta(any, options);
  } else {
    build_bert(any, options);
  }
  any.sample_inputs = [module = any.module, preset = any.preset, options](SampleSize size) {
    size = filled(size, preset.sample);
    return Tensors{sample_ids({size.batch, size.sequence}, options.vocab_size, device_of(*module))};
  };
}

void build(AnyModel& any, const NcfOptions& options) {
  Ncf model(options);
  any.module = model.ptr();
  any.forward = [model, preset = any.preset](const Tensors& inputs) -> Tensors {
    expect_inputs(preset, inputs, 2, 2);
    return {model(inputs[0], inputs[1])};
  };
  any.sample_inputs = [model, preset = any.preset, options](SampleSize size) {
    size = filled(size, preset.sample);
    const auto device = device_of(*model);
    std::vector<std::int64_t> shape{size.batch};
    if (size.sequence > 0) {
      shape.push_back(size.sequence);
    }
    return Tensors{
        sample_ids(shape, options.users, device), sample_ids(shape, options.items, device)};
  };
  any.loss = [](const Tensors& outputs, const Tensors& targets) {
    return at::binary_cross_entropy_with_logits(
        outputs.at(0).to(at::kFloat), targets.at(0).to(at::kFloat));
  };
}

} // namespace

AnyModel make_model(const Preset& preset) {
  take_published_states();
  AnyModel any;
  any.preset = preset;
  std::visit([&](const auto& options) { build(any, options); }, preset.options);
  if (!any.training_loss) {
    any.training_loss = [forward = any.forward, loss = any.loss](
                            const Tensors& inputs, const Tensors& targets) {
      return loss(forward(inputs), targets);
    };
  }
  return any;
}

AnyModel make_model(const std::string& name, const std::string& overrides) {
  return make_model(resolve_preset(name, overrides));
}

} // namespace tessera::models
