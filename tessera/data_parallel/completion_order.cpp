#include "tessera/data_parallel/completion_order.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "tessera/tensor/value.h"

namespace tessera::data_parallel {

std::vector<int> agreed_completion_order(
    comm::World& world,
    const comm::ProcessGroup& control,
    const std::vector<int>& first_done) {
  std::vector<std::int64_t> order(first_done.size());
  std::iota(order.begin(), order.end(), 0);
  const auto position = [&](std::int64_t index) {
    const int done = first_done[static_cast<std::size_t>(index)];
    return done < 0 ? std::numeric_limits<int>::max() : done;
  };
  std::stable_sort(
      order.begin(), order.end(), [&](auto a, auto b) { return position(a) < position(b); });
  const auto agreed =
      unpack<std::vector<std::int64_t>>(comm::broadcast_object(world, control, pack(order), 0));
  return {agreed.begin(), agreed.end()};
}

} // namespace tessera::data_parallel
