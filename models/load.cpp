#include "models/load.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include <torch/torch.h>

#include "tessera/base/error.h"

namespace tessera::models {

namespace {

// What checkpoints carry along and these models do not use: causal masks and frequencies of rotary
// positions; a bias that the published T5s hold, which no class adds to the scores of a second
// attention; BERT's heads for other tasks, where the model has none (else it is a parameter).
bool is_without_use(const std::string& name) {
  for (const std::string head : {"pooler.dense.weight", "pooler.dense.bias"}) {
    if (name == head || name == "bert." + head || name == "roberta." + head) {
      return true;
    }
  }
  return name.ends_with("EncDecAttention.relative_attention_bias.weight") ||
         name == "cls.seq_relationship.weight" || name == "cls.seq_relationship.bias" ||
         name.ends_with("attn.bias") || name.ends_with("attn.masked_bias") ||
         name.ends_with("attention.bias") || name.ends_with("attention.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq") || name.ends_with("embeddings.position_ids");
}

// "transformer.h.0.ln_1.weight" -> "h.0.ln_1.weight": files of a model without
// its head. Other first names belong to the name: "encoder" and "decoder" of T5
// have the same parameters below them.
std::string without_root(const std::string& name) {
  for (const std::string root : {"transformer.", "bert.", "roberta."}) {
    if (name.starts_with(root)) {
      return name.substr(root.size());
    }
  }
  return name;
}

/// All names that files have for a parameter: its own, that without the root, those of the first
/// files, which TensorFlow wrote, and those under which other modules of transformers share it.
std::set<std::string> names_in_files(const std::string& own) {
  std::set<std::string> names{own, without_root(own)};
  const auto also = [&](const std::string& ending, const std::string& other) {
    for (const std::string& name : std::set<std::string>(names)) {
      if (name.ends_with(ending)) {
        names.insert(name.substr(0, name.size() - ending.size()) + other);
      }
    }
  };
  also("LayerNorm.weight", "LayerNorm.gamma");
  also("LayerNorm.bias", "LayerNorm.beta");
  also("predictions.bias", "predictions.decoder.bias");
  if (own == "lm_head.bias") { // of a RoBERTa
    names.insert("lm_head.decoder.bias");
  } else if (own == "shared.weight") { // of a T5
    names.insert({"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"});
  }
  return names;
}

// Whether a name is that of a T5's table, which its encoder and its decoder share.
bool is_table_of_t5(const std::string& name) {
  return name == "shared.weight" || name == "encoder.embed_tokens.weight" ||
         name == "decoder.embed_tokens.weight";
}

// Bit by bit in the parameter's dtype: a NaN equals itself.
bool same_content(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  const at::Tensor x = a.to(dtype).contiguous();
  const at::Tensor y = b.to(dtype).contiguous();
  return x.sizes() == y.sizes() && std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
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

void check_tensor(
    const std::string& what,
    const std::string& name,
    const at::Tensor& found,
    const WantedParameter& parameter) {
  if (found.sizes() != parameter.sizes) {
    throw CheckpointError(tessera::str(
        what,
        ": ",
        name,
        " has the shape ",
        found.sizes(),
        ", the model's is ",
        at::IntArrayRef(parameter.sizes)));
  }
  // Whole numbers are codes of some quantisation, not the weights themselves.
  if (!found.is_floating_point()) {
    throw CheckpointError(tessera::str(
        what,
        ": ",
        name,
        " is of type ",
        found.scalar_type(),
        ", expected floating-point numbers; quantised files are not read"));
  }
}

std::map<std::string, at::Tensor> found_for(
    const std::vector<WantedParameter>& parameters,
    const std::map<std::string, at::Tensor>& tensors,
    const std::string& what) {
  // One entry for each tensor of the model, whatever names it has.
  std::map<const void*, Source> sources;
  std::map<std::string, bool> used;
  for (const WantedParameter& parameter : parameters) {
    for (const auto& name : names_in_files(parameter.name)) {
      const auto found = tensors.find(name);
      if (found == tensors.end()) {
        continue;
      }
      check_tensor(what, name, found->second, parameter);
      used[name] = true;
      const auto [first, fresh] = sources.emplace(parameter.identity, Source{name, found->second});
      if (!fresh && !same_content(first->second.tensor, found->second, parameter.dtype)) {
        const bool tables = is_table_of_t5(first->second.name) && is_table_of_t5(name);
        throw CheckpointError(tessera::str(
            what,
            ": ",
            first->second.name,
            " and ",
            name,
            " are one parameter of this model, and their contents differ; ",
            tables ? "encoder and decoder of a T5 have one table of embeddings here, whatever its "
                     "configuration says, so a file with two is not read"
                   : "if they should be two parameters, the model's configuration says so "
                     "(tie_word_embeddings: false)"));
      }
    }
  }
  std::vector<std::string> missing;
  for (const WantedParameter& parameter : parameters) {
    if (sources.count(parameter.identity) == 0) {
      missing.push_back(parameter.name);
    }
  }
  std::vector<std::string> unknown;
  for (const auto& entry : tensors) {
    if (used.count(entry.first) == 0 && !is_without_use(entry.first)) {
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
  std::map<std::string, at::Tensor> found;
  for (const WantedParameter& parameter : parameters) {
    found[parameter.name] = sources.at(parameter.identity).tensor;
  }
  return found;
}

/// What is found goes under every name of its parameter; the rest stays.
std::map<std::string, at::Tensor> renamed(
    const std::vector<WantedParameter>& parameters,
    const std::map<std::string, at::Tensor>& tensors) {
  std::map<const void*, at::Tensor> sources;
  std::map<std::string, at::Tensor> state = tensors;
  for (const WantedParameter& parameter : parameters) {
    for (const auto& name : names_in_files(parameter.name)) {
      if (const auto found = tensors.find(name); found != tensors.end()) {
        sources.emplace(parameter.identity, found->second);
        state.erase(name);
      }
    }
  }
  for (const WantedParameter& parameter : parameters) {
    if (const auto found = sources.find(parameter.identity); found != sources.end()) {
      state[parameter.name] = found->second;
    }
  }
  return state;
}

} // namespace

std::vector<WantedParameter> wanted_parameters(const torch::nn::Module& module) {
  std::vector<WantedParameter> wanted;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    wanted.push_back(
        {item.key(),
         parameter.sizes().vec(),
         parameter.scalar_type(),
         parameter.unsafeGetTensorImpl()});
  }
  return wanted;
}

std::map<std::string, at::Tensor> in_form_of(
    const std::vector<WantedParameter>& wanted,
    const std::map<std::string, at::Tensor>& tensors,
    bool strict,
    const std::string& what) {
  std::set<std::string> names;
  std::set<std::string> further; // names of a shared parameter behind its first one
  std::set<const void*> seen;
  for (const WantedParameter& parameter : wanted) {
    names.insert(parameter.name);
    if (!seen.insert(parameter.identity).second) {
      further.insert(parameter.name);
    }
  }
  // What has every first name and nothing without use is the model's own; other names are the
  // loader's to tell.
  const bool whole = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return further.contains(name) || tensors.contains(name);
  });
  const bool without_use = std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) {
    return is_without_use(entry.first) && !names.contains(entry.first);
  });
  std::map<std::string, at::Tensor> state = whole && !without_use ? tensors
                                            : strict              ? found_for(wanted, tensors, what)
                                                                  : renamed(wanted, tensors);
  // A distributed module that takes the whole model's place knows the first names alone.
  std::erase_if(state, [&](const auto& entry) { return further.contains(entry.first); });
  return state;
}

std::map<std::string, at::Tensor> parameters_from(
    const torch::nn::Module& module,
    const std::map<std::string, at::Tensor>& tensors,
    const std::string& what) {
  return found_for(wanted_parameters(module), tensors, what);
}

void load_parameters(
    torch::nn::Module& module,
    const std::map<std::string, at::Tensor>& tensors,
    const std::string& what) {
  const auto found = parameters_from(module, tensors, what);
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    at::Tensor parameter = item.value();
    parameter.copy_(found.at(item.key()));
  }
}

} // namespace tessera::models
