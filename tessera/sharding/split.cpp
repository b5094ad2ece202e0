#include "tessera/sharding/split.h"

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace tessera::sharding {

namespace {

/// Leaves true what every rank of the group has true.
void agree(
    comm::ProcessGroup& group,
    std::vector<bool>& flags,
    const std::vector<std::size_t>& of) {
  if (of.empty()) {
    return;
  }
  const at::Tensor bytes = at::zeros({static_cast<std::int64_t>(of.size())}, at::kByte);
  auto* byte = bytes.data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < of.size(); ++i) {
    byte[i] = flags[of[i]] ? 1 : 0;
  }
  group.all_reduce(bytes, comm::ReduceOp::kMin);
  for (std::size_t i = 0; i < of.size(); ++i) {
    flags[of[i]] = byte[i] != 0;
  }
}

} // namespace

Split split(
    const Context& context,
    const NamedTensors& parameters,
    const ModelShards::IsScaled& is_scaled) {
  if (context.config.sharded_data_parallel_degree == 1) {
    return {.divided = {}, .whole = parameters};
  }
  std::vector<bool> divides;
  std::vector<std::size_t> equal;
  std::vector<std::size_t> scaled;
  for (const auto& [name, tensor] : parameters) {
    (is_scaled(name) ? scaled : equal).push_back(divides.size());
    divides.push_back(ModelShards::divides(context.config, name, tensor));
  }
  agree(*context.control, divides, equal);
  if (context.rdp_control != nullptr) {
    agree(*context.rdp_control, divides, scaled);
  }
  Split split;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    (divides[i] ? split.divided : split.whole).push_back(parameters[i]);
  }
  return split;
}

} // namespace tessera::sharding
