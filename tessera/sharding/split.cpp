#include "tessera/sharding/split.h"

#include <ATen/ATen.h>

#include "tessera/sharding/model_shards.h"

namespace tessera::sharding {

Split split(const Context& context, const NamedTensors& parameters) {
  if (context.config.sharded_data_parallel_degree == 1) {
    return {.divided = {}, .whole = parameters};
  }
  const auto count = static_cast<std::int64_t>(parameters.size());
  const at::Tensor flags = at::zeros({count}, at::kByte);
  auto* divides = flags.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& [name, tensor] = parameters[i];
    divides[i] = ModelShards::divides(context.config, name, tensor) ? 1 : 0;
  }
  context.control->all_reduce(flags, comm::ReduceOp::kMin);
  Split split;
  for (std::int64_t i = 0; i < count; ++i) {
    (divides[i] != 0 ? split.divided : split.whole).push_back(parameters[i]);
  }
  return split;
}

} // namespace tessera::sharding
