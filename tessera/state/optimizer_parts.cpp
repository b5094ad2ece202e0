#include "tessera/state/optimizer_parts.h"

#include "tessera/tensor/value.h"

namespace tessera::state {

c10::IValue pack_state(const OptimizerState& state) {
  std::vector<std::tuple<std::vector<std::string>, Fields>> groups;
  for (const auto& group : state.groups) {
    groups.emplace_back(group.parameters, group.options);
  }
  return pack(std::make_tuple(state.kind, groups, state.parameters));
}

OptimizerState unpack_state(const c10::IValue& value) {
  auto [kind, groups, parameters] = unpack<std::tuple<
      std::string,
      std::vector<std::tuple<std::vector<std::string>, Fields>>,
      std::map<std::string, Fields>>>(value);
  OptimizerState state;
  state.kind = kind;
  for (auto& [names, options] : groups) {
    state.groups.push_back({names, options});
  }
  state.parameters = std::move(parameters);
  return state;
}

void merge_into(OptimizerState& whole, OptimizerState part) {
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

} // namespace tessera::state
