#pragma once

#include <functional>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace tessera::nn {

/// Turns a state of another program's form into one under the names of a model. A state that has
/// the model's names comes back as it is. Not strict: what does not fit is left as it is.
/// Throws: CheckpointError, when strict, naming what does not fit.
using TranslateState = std::function<
    std::map<std::string, at::Tensor>(const std::map<std::string, at::Tensor>& state, bool strict)>;

/// Makes the translation of a whole model, as the script built it; nullptr for a model that it does
/// not know. What is returned must not keep the module's tensors.
using MakeStateTranslation = std::function<TranslateState(const torch::nn::Module& module)>;

/// Makes a translation known to the models that are distributed from now on: their
/// `load_state_dict` takes states of that form as well. Not collective; every rank registers alike.
/// Threads: any thread.
void register_state_translation(MakeStateTranslation make);

/// The translation of the first registration that knows the model; nullptr when none does.
/// Threads: any thread.
TranslateState state_translation_of(const torch::nn::Module& module);

} // namespace tessera::nn
