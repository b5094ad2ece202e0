#include "tessera/state/optimizer_state.h"

#include <set>
#include <unordered_map>

#include <torch/optim/optimizer.h>

#include "tessera/base/error.h"
#include "tessera/state/optimizer_registry.h"
#include "tessera/state/optimizer_state_key.h"

namespace tessera::state {

namespace {

using torch::optim::Optimizer;

class Names {
 public:
  explicit Names(const NamedTensors& parameters) {
    std::set<std::string> seen;
    for (const auto& [name, tensor] : parameters) {
      if (!seen.insert(name).second) {
        throw CheckpointError(str("two parameters are named \"", name, "\"; names must differ"));
      }
      names_.emplace(tensor.unsafeGetTensorImpl(), name);
    }
  }

  const std::string& of(const at::Tensor& tensor, std::size_t group, std::size_t index) const {
    const auto found = names_.find(tensor.unsafeGetTensorImpl());
    if (found == names_.end()) {
      throw CheckpointError(tessera::str(
          "the optimizer's tensor ",
          index,
          " of group ",
          group,
          ", of shape ",
          tensor.sizes(),
          ", is not among the named parameters; make the optimizer from "
          "the parameters of the model that is saved"));
    }
    return found->second;
  }

 private:
  std::unordered_map<const void*, std::string> names_;
};

// Where each saved parameter's group is.
std::map<std::string, std::size_t> groups_by_parameter(const OptimizerState& state) {
  std::map<std::string, std::size_t> groups;
  for (std::size_t i = 0; i < state.groups.size(); ++i) {
    for (const auto& name : state.groups[i].parameters) {
      groups.emplace(name, i);
    }
  }
  return groups;
}

// The optimizer will change it in place, so nobody else may hold it.
at::Tensor own(at::Tensor tensor, at::Device device) {
  const bool alone = tensor.use_count() == 1 && tensor.storage().use_count() == 1;
  return tensor.detach().to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/!alone);
}

// What a restore will put in place once all of it is known to fit.
struct Restored {
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  // null: the parameter had no state yet
  std::vector<std::pair<at::Tensor, std::unique_ptr<torch::optim::OptimizerParamState>>> states;
};

class Restorer {
 public:
  Restorer(const Optimizer& optimizer, OptimizerState state, const NamedTensors& parameters)
      : codec_(codec_of(optimizer)),
        saved_(std::move(state)),
        saved_groups_(groups_by_parameter(saved_)),
        names_(parameters) {
    if (saved_.kind != codec_.kind) {
      throw CheckpointError(
          str("the checkpoint holds the state of ",
              saved_.kind,
              ", the optimizer is ",
              codec_.kind,
              "; use the same kind, or load without the optimizer"));
    }
    const auto& groups = optimizer.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      add_group(groups[i], i);
    }
    if (!problems_.empty()) {
      throw CheckpointError(str("the optimizer state does not fit:", problems_));
    }
  }

  Restored take() {
    return std::move(restored_);
  }

 private:
  void add_group(const torch::optim::OptimizerParamGroup& group, std::size_t index) {
    // A group that has no parameter here is known by its position only.
    const Fields* options = nullptr;
    if (group.params().empty() && index < saved_.groups.size()) {
      options = &saved_.groups[index].options;
    }
    for (std::size_t i = 0; i < group.params().size(); ++i) {
      const at::Tensor& parameter = group.params()[i];
      const std::string& name = names_.of(parameter, index, i);
      const auto at = saved_groups_.find(name);
      if (at == saved_groups_.end()) {
        problems_ += str("\n  missing: ", name);
        continue;
      }
      const Fields& here = saved_.groups[at->second].options;
      if (options != nullptr && !same_fields(*options, here)) {
        problems_ +=
            str("\n  ",
                name,
                " was saved with other options than parameters before it in group ",
                index,
                "; divide the parameters into groups as when saving");
      }
      options = &here;
      add_state(name, parameter);
    }
    auto made = group.options().clone();
    if (options != nullptr) {
      try {
        codec_.set_options(*made, *options);
      } catch (const std::exception& error) {
        problems_ += str("\n  options of group ", index, ": ", error.what());
      }
    }
    restored_.options.push_back(std::move(made));
  }

  void add_state(const std::string& name, const at::Tensor& parameter) {
    const auto found = saved_.parameters.find(name);
    if (found == saved_.parameters.end()) {
      restored_.states.emplace_back(parameter, nullptr);
      return;
    }
    Fields fields;
    for (auto& [field, value] : found->second) {
      if (!value.isTensor()) {
        fields[field] = value;
        continue;
      }
      at::Tensor tensor = std::move(value).toTensor();
      if (codec_.state_has_parameter_shape && tensor.sizes() != parameter.sizes()) {
        problems_ += tessera::str(
            "\n  shape: ",
            field,
            " of ",
            name,
            " was saved as ",
            tensor.sizes(),
            ", the parameter is ",
            parameter.sizes());
      }
      fields[field] = own(std::move(tensor), parameter.device());
    }
    try {
      restored_.states.emplace_back(parameter, codec_.make_state(fields));
    } catch (const std::exception& error) {
      problems_ += str("\n  state of ", name, ": ", error.what());
    }
  }

  const OptimizerCodec& codec_;
  OptimizerState saved_;
  std::map<std::string, std::size_t> saved_groups_;
  Names names_;
  std::string problems_;
  Restored restored_;
};

} // namespace

OptimizerState capture(const Optimizer& optimizer, const NamedTensors& parameters) {
  const OptimizerCodec& codec = codec_of(optimizer);
  const Names names(parameters);
  OptimizerState captured;
  captured.kind = codec.kind;
  const auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& group = captured.groups.emplace_back();
    group.options = codec.option_fields(groups[i].options());
    const auto& params = groups[i].params();
    for (std::size_t j = 0; j < params.size(); ++j) {
      const std::string& name = names.of(params[j], i, j);
      group.parameters.push_back(name);
      const auto found = optimizer.state().find(optimizer_state_key(params[j]));
      if (found == optimizer.state().end() || found->second == nullptr) {
        continue;
      }
      const auto& state = *found->second;
      if (std::type_index(typeid(state)) != codec.state_type) {
        throw CheckpointError(
            str("the optimizer keeps state of type ",
                typeid(state).name(),
                " for ",
                name,
                ", but its options belong to ",
                codec.kind,
                "; give it options of its own and register both"));
      }
      captured.parameters.emplace(name, codec.state_fields(state));
    }
  }
  return captured;
}

void restore(Optimizer& optimizer, OptimizerState state, const NamedTensors& parameters) {
  Restored restored = Restorer(optimizer, std::move(state), parameters).take();
  for (std::size_t i = 0; i < restored.options.size(); ++i) {
    optimizer.param_groups()[i].set_options(std::move(restored.options[i]));
  }
  for (auto& [parameter, made] : restored.states) {
    if (made == nullptr) {
      optimizer.state().erase(optimizer_state_key(parameter));
    } else {
      optimizer.state()[optimizer_state_key(parameter)] = std::move(made);
    }
  }
}

} // namespace tessera::state
