#include "models/load.h"

#include <algorithm>
#include <vector>

#include <torch/torch.h>

#include "tessera/base/error.h"

namespace tessera::models {

namespace {

// Causal masks that GPT-2's checkpoints carry along.
bool is_constant_mask(const std::string& name) {
  return name.ends_with("attn.bias") || name.ends_with("attn.masked_bias") ||
         name.ends_with("embeddings.position_ids");
}

// "transformer.h.0.weight" -> "h.0.weight"
std::string without_root(const std::string& name) {
  return name.substr(name.find('.') + 1);
}

std::string first_few(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 3); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return names.size() > 3 ? tessera::str(text, " and ", names.size() - 3, " more") : text;
}

struct Source {
  std::string name; // in the file
  at::Tensor tensor;
};

} // namespace

void load_parameters(
    torch::nn::Module& module,
    const std::map<std::string, at::Tensor>& tensors,
    const std::string& what) {
  // One entry for each tensor of the model, whatever names it has.
  std::map<c10::TensorImpl*, Source> sources;
  std::map<std::string, bool> used;
  const auto parameters = module.named_parameters();
  for (const auto& item : parameters) {
    for (const auto& name : {item.key(), without_root(item.key())}) {
      const auto found = tensors.find(name);
      if (found == tensors.end()) {
        continue;
      }
      if (found->second.sizes() != item.value().sizes()) {
        throw CheckpointError(tessera::str(
            what,
            ": ",
            name,
            " has the shape ",
            found->second.sizes(),
            ", the model's is ",
            item.value().sizes()));
      }
      used[name] = true;
      sources.emplace(item.value().unsafeGetTensorImpl(), Source{name, found->second});
      break;
    }
  }
  std::vector<std::string> missing;
  for (const auto& item : parameters) {
    if (sources.count(item.value().unsafeGetTensorImpl()) == 0) {
      missing.push_back(item.key());
    }
  }
  std::vector<std::string> unknown;
  for (const auto& entry : tensors) {
    if (used.count(entry.first) == 0 && !is_constant_mask(entry.first)) {
      unknown.push_back(entry.first);
    }
  }
  if (!missing.empty() || !unknown.empty()) {
    throw CheckpointError(tessera::str(
        what,
        " is not of this model:",
        missing.empty() ? "" : " it lacks " + first_few(missing),
        missing.empty() || unknown.empty() ? "" : ";",
        unknown.empty() ? "" : " the model has no " + first_few(unknown)));
  }
  const torch::NoGradGuard no_grad;
  for (const auto& item : parameters) {
    at::Tensor parameter = item.value();
    parameter.copy_(sources.at(parameter.unsafeGetTensorImpl()).tensor);
  }
}

} // namespace tessera::models
