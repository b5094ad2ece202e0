#include "tessera/train/optimizer_parts.h"

#include "tessera/base/error.h"
#include "tessera/tensor/value.h"

namespace tessera {

namespace train {

ModelCore* only_model() {
  const auto& models = session().engine->models();
  return models.empty() ? nullptr : models.front();
}

NamedTensors updated_tensors(const ModelCore& model, const DistributedOptimizer* optimizer) {
  NamedTensors tensors = model.local_parameters();
  if (optimizer != nullptr) {
    for (auto& [name, tensor] : tensors) {
      tensor = optimizer->updated_tensor(tensor);
    }
  }
  return tensors;
}

c10::IValue pack_state(const checkpoint::OptimizerState& state) {
  std::vector<std::tuple<std::vector<std::string>, checkpoint::Fields>> groups;
  for (const auto& group : state.groups) {
    groups.emplace_back(group.parameters, group.options);
  }
  return pack(std::make_tuple(state.kind, groups, state.parameters));
}

checkpoint::OptimizerState unpack_state(const c10::IValue& value) {
  auto [kind, groups, parameters] = unpack<std::tuple<
      std::string,
      std::vector<std::tuple<std::vector<std::string>, checkpoint::Fields>>,
      std::map<std::string, checkpoint::Fields>>>(value);
  checkpoint::OptimizerState state;
  state.kind = kind;
  for (auto& [names, options] : groups) {
    state.groups.push_back({names, options});
  }
  state.parameters = std::move(parameters);
  return state;
}

void merge_into(checkpoint::OptimizerState& whole, checkpoint::OptimizerState part) {
  if (whole.groups.empty()) {
    whole = std::move(part);
    return;
  }
  for (std::size_t i = 0; i < part.groups.size(); ++i) {
    auto& names = whole.groups.at(i).parameters;
    names.insert(names.end(), part.groups[i].parameters.begin(), part.groups[i].parameters.end());
  }
  whole.parameters.merge(part.parameters);
}

namespace {

ModelCore* current_model() {
  ModelCore* const model = only_model();
  if (model == nullptr) {
    throw ConfigError(
        "an optimizer's state goes by the model's parameter names; make a "
        "DistributedModel first");
  }
  return model;
}

} // namespace
} // namespace train

checkpoint::OptimizerState DistributedOptimizer::local_state_dict() {
  train::ModelCore* const model = train::current_model();
  model->plan(); // throws before the partition
  prepare();
  return checkpoint::capture(*optimizer_, train::updated_tensors(*model, this));
}

checkpoint::OptimizerState DistributedOptimizer::state_dict() {
  train::Session& s = train::session();
  const auto parts = comm::all_gather_object(
      *s.world,
      s.group(Group::kMP),
      train::pack_state(train::current_model()->state_layout().whole_share(local_state_dict())));
  checkpoint::OptimizerState whole;
  for (const auto& part : parts) {
    train::merge_into(whole, train::unpack_state(part));
  }
  for (auto& [name, fields] : whole.parameters) {
    for (auto& [key, value] : fields) {
      value = map_tensors(value, [](const at::Tensor& tensor) { return tensor.clone(); });
    }
  }
  return whole;
}

void DistributedOptimizer::load_state_dict(checkpoint::OptimizerState state) {
  train::ModelCore* const model = train::current_model();
  auto shared = std::make_shared<checkpoint::OptimizerState>(std::move(state));
  model->on_partition([this, model, shared] {
    prepare();
    checkpoint::restore(
        *optimizer_, model->state_layout().to_local(*shared), train::updated_tensors(*model, this));
  });
}

} // namespace tessera
