#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "models/presets.h"

namespace tessera::models {

using Tensors = std::vector<at::Tensor>;

/// A model of any family behind one face, for programs that choose by name.
/// Calls go through the root's own holder, so that they can be intercepted.
struct AnyModel {
  Preset preset; // with the options it was built from
  std::shared_ptr<torch::nn::Module> module;

  /// Inputs and outputs by family:
  ///   gpt, llama, gptj, gpt_neo, gpt_neox
  ///                ids_BS[, document_begins_BS[, positions_BS]] -> logits_BSV
  ///   t5           ids_BS, decoder_ids_BT[, attention_mask_BS[, decoder_mask_BT]]
  ///                -> logits_BTV
  ///   bert         ids_BS[, attention_mask_BS[, token_types_BS]]
  ///                -> logits_BSV[, next_sentence_B2] (with next_sentence)
  ///   roberta      ids_BS[, attention_mask_BS] -> logits_BSV
  ///   ncf          users_B, items_B -> logits_B, or pairs users_BP, items_BP -> logits_BP
  std::function<Tensors(const Tensors&)> forward;

  /// Inputs of the given size with valid values, on the device of the
  /// parameters (meta works too); zeros of `size` stand for the preset's own.
  std::function<Tensors(SampleSize size)> sample_inputs;

  /// One number from outputs and targets (labels of the family's objective):
  ///   gpt, llama, ..., t5, roberta   targets_BS (kIgnoredTarget does not count)
  ///   bert               targets_BS[, is_next_B]
  ///   ncf                1 or 0 for each pair, float_B or float_BP
  std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)> loss;

  /// loss(forward(inputs), targets). A model that can takes the targets into its
  /// call, so that ranks which divide its vocabulary never gather logits.
  std::function<at::Tensor(const Tensors& inputs, const Tensors& targets)> training_loss;
};

/// Builds a preset; `overrides` is the text of a JSON object with options of
/// its family ("{}" for none). Random numbers come from torch's generator:
/// seed it first. Under a delayed-initialisation scope no weight is allocated.
/// Throws: ConfigError.
AnyModel make_model(const std::string& name, const std::string& overrides = "{}");

AnyModel make_model(const Preset& preset);

} // namespace tessera::models
