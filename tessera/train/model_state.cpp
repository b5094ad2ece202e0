// Parameters and buffers of ModelCore as a whole: broadcast, state
// dictionaries.
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/tensor/value.h"
#include "tessera/train/model_core.h"

namespace tessera::train {

namespace {

// Several tensors of one dtype in one message; bool travels as bytes.
void broadcast_together(
    comm::ProcessGroup& group,
    const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& tensor : tensors) {
    by_type[tensor.scalar_type()].push_back(tensor);
  }
  for (auto& [type, list] : by_type) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& tensor : list) {
      rows.push_back(tensor.detach().reshape({-1}));
    }
    at::Tensor flat = at::cat(rows);
    group.broadcast(type == at::kBool ? flat.view(at::kByte) : flat, 0);
    std::int64_t at = 0;
    for (at::Tensor& tensor : list) {
      tensor.detach().copy_(
          flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  }
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) {
    tensors.push_back(tensor);
  }
  return tensors;
}

} // namespace

void ModelCore::broadcast_parameters() {
  comm::ProcessGroup& group = session().group(Group::kRDP);
  if (group.size() == 1) {
    return;
  }
  broadcast_together(group, tensors_of(table_->local_parameters()));
  broadcast_together(group, tensors_of(table_->local_buffers()));
}

void ModelCore::broadcast_buffers() {
  comm::ProcessGroup& group = session().group(Group::kRDP);
  if (group.size() == 1) {
    return;
  }
  const auto buffers = tensors_of(table_->local_buffers());
  if (!buffers.empty()) {
    broadcast_together(group, buffers);
  }
}

std::vector<at::Tensor> ModelCore::all_parameters() const {
  // libtorch lists a shared parameter once for each module that holds it.
  std::vector<at::Tensor> unique;
  std::set<const void*> seen;
  for (const at::Tensor& parameter : root_->parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      unique.push_back(parameter);
    }
  }
  return unique;
}

TensorMap ModelCore::local_state_dict() const {
  TensorMap state;
  for (const auto& list : {local_parameters(), local_buffers()}) {
    for (const auto& [name, tensor] : list) {
      state.emplace(name, tensor.detach());
    }
  }
  return state;
}

TensorMap ModelCore::state_dict(bool only_first) {
  Session& s = session();
  comm::ProcessGroup& group = s.group(Group::kPP);
  const TensorMap local = local_state_dict();
  TensorMap whole;
  if (group.size() == 1) {
    for (const auto& [name, tensor] : local) {
      whole.emplace(name, tensor.cpu().clone());
    }
    return whole;
  }
  const auto parts =
      only_first ? comm::gather_object(*s.world, group, pack(local), 0)
                 : comm::all_gather_object(*s.world, group, pack(local));
  for (const auto& part : parts) {
    whole.merge(unpack<TensorMap>(part));
  }
  return whole;
}

void ModelCore::load_state_dict(TensorMap state, bool strict) {
  if (partitioned()) {
    apply_state(state, strict);
  } else {
    deferred_state_.emplace(std::move(state), strict);
  }
}

// Collective over the world: one rank's problem is every rank's error, and
// nothing is loaded when anything does not fit.
void ModelCore::apply_state(const TensorMap& state, bool strict) {
  const at::NoGradGuard no_grad;
  std::set<std::string> problems;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies; // to, from
  for (const auto& list : {local_parameters(), local_buffers()}) {
    for (const auto& [name, tensor] : list) {
      const auto found = state.find(name);
      if (found == state.end()) {
        if (strict) {
          problems.insert(tessera::str("'", name, "' is missing"));
        }
      } else if (found->second.sizes() != tensor.sizes()) {
        problems.insert(tessera::str(
            "'",
            name,
            "' has shape ",
            found->second.sizes(),
            ", the model's is ",
            tensor.sizes()));
      } else {
        copies.emplace_back(tensor.detach(), found->second);
      }
    }
  }
  if (strict) {
    for (const auto& [name, tensor] : state) {
      if (!table_->has_tensor(name)) {
        problems.insert(tessera::str("'", name, "' is not in the model"));
      }
    }
  }
  Session& s = session();
  const auto everybodys = comm::all_gather_object(
      *s.world,
      s.group(Group::kWorld),
      pack(std::vector<std::string>(problems.begin(), problems.end())));
  for (const auto& theirs : everybodys) {
    for (std::string& problem : unpack<std::vector<std::string>>(theirs)) {
      problems.insert(std::move(problem));
    }
  }
  if (!problems.empty()) {
    std::string text = "load_state_dict: the state does not fit:";
    for (const std::string& problem : problems) {
      text += "\n  " + problem;
    }
    throw CheckpointError(text);
  }
  for (auto& [to, from] : copies) {
    to.copy_(from);
  }
}

} // namespace tessera::train
