#include "tessera/train/partial_state.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/train/host_objects.h"

namespace tessera::train {

StateKind take_kind(TensorMap& state, const char* marker) {
  const auto found = state.find(marker);
  if (found == state.end()) {
    return StateKind::kWhole;
  }
  const bool part = found->second.to(at::kBool).all().item<bool>();
  state.erase(found);
  return part ? StateKind::kPart : StateKind::kWholeAsNamed;
}

void agree_on_kind(StateKind kind) {
  const std::vector<std::int64_t> kinds = allgather(static_cast<std::int64_t>(kind));
  if (std::count(kinds.begin(), kinds.end(), kinds.front()) !=
      static_cast<std::ptrdiff_t>(kinds.size())) {
    throw CheckpointError(
        "load_state_dict: ranks give states of different kinds, some a whole state and others "
        "their "
        "part of one; give one kind on every rank");
  }
}

void agree_on_error(const std::function<void()>& work) {
  std::string mine;
  try {
    work();
  } catch (const CheckpointError& error) {
    mine = error.what();
  }
  for (const std::string& text : allgather(mine)) {
    if (!text.empty()) {
      throw CheckpointError(text);
    }
  }
}

TensorMap joined_over_pipeline(const TensorMap& part) {
  TensorMap whole;
  for (const TensorMap& of_rank : allgather(part, Group::kPP)) {
    for (const auto& [name, tensor] : of_rank) {
      const auto [found, fresh] = whole.emplace(name, tensor);
      if (!fresh && !found->second.equal(tensor)) {
        throw CheckpointError(
            str("load_state_dict: '",
                name,
                "' is in the parts of several pipeline ranks, and its contents differ: the parts "
                "are not of one state"));
      }
    }
  }
  return whole;
}

} // namespace tessera::train
