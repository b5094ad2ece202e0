#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace tessera::models {

/// Copies tensors (of a safetensors file, say) into a model's parameters, by
/// name; dtypes are converted.
///
/// Published files differ from a model's names in ways that are taken care of:
/// names without the root ("h.0.ln_1.weight" for "transformer.h.0.ln_1.weight"),
/// tied weights written once or under every name, "gamma" and "beta" of BERT's
/// norms, and what no logit depends on, which is left out: constant masks and
/// frequencies of attention layers, heads of BERT that the model has not.
///
/// Throws: CheckpointError that names what is missing, what is not of this
/// model, both shapes where they differ, tensors that are no floating-point
/// numbers, or two names of one parameter whose contents differ (a separate
/// output layer in a file for a tied model); `what` names the file. Then the
/// model is unchanged.
/// Not collective: for whole models, not for parts of a distributed one.
void load_parameters(
    torch::nn::Module& module,
    const std::map<std::string, at::Tensor>& tensors,
    const std::string& what);

/// A parameter of a model: what a state must have for it.
struct WantedParameter {
  std::string name;
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  const void* identity = nullptr; // equal for the names of one tensor, else of no meaning
};
std::vector<WantedParameter> wanted_parameters(const torch::nn::Module& module);

/// A state under the first name of every parameter: as it is where it has these and nothing that no
/// logit depends on, else the same from a published form; further names of shared parameters are
/// left out. Not strict: names that are known are given in the model's form, and others stay.
/// Throws: as load_parameters, when strict. Not collective.
std::map<std::string, at::Tensor> in_form_of(
    const std::vector<WantedParameter>& wanted,
    const std::map<std::string, at::Tensor>& tensors,
    bool strict,
    const std::string& what);

/// The same tensors under the names of a model's parameters, all names of shared ones: what
/// Model::load_state_dict takes, of which each rank copies its own part. The model's values are not
/// read, so they need not be there yet (delayed initialisation).
/// Throws: as load_parameters. Not collective.
std::map<std::string, at::Tensor> parameters_from(
    const torch::nn::Module& module,
    const std::map<std::string, at::Tensor>& tensors,
    const std::string& what);

} // namespace tessera::models
