#include "tessera/partition/allocation.h"

#include <numeric>

#include "tessera/base/error.h"

namespace tessera::partitioning {

Seats allocate_seats(
    const std::vector<std::int64_t>& costs,
    const std::vector<int>& capacity,
    int seats) {
  TESSERA_CHECK(std::accumulate(capacity.begin(), capacity.end(), std::int64_t{0}) >= seats);
  const int segments = static_cast<int>(costs.size());
  Seats result;
  result.count.assign(segments, 0);
  for (int award = 0; award < seats; ++award) {
    int chosen = -1;
    for (int i = 0; i < segments; ++i) {
      if (result.count[i] == capacity[i]) {
        continue;
      }
      if (chosen >= 0) {
        // Compares costs[i] / (count[i] + 1) with that of the chosen one, without dividing.
        const std::int64_t mine = costs[i] * (result.count[chosen] + 1);
        const std::int64_t other = costs[chosen] * (result.count[i] + 1);
        if (mine < other || (mine == other && result.count[i] > result.count[chosen])) {
          continue;
        }
      }
      chosen = i;
    }
    ++result.count[chosen];
    result.order.push_back(chosen);
  }
  return result;
}

std::vector<std::vector<int>> hand_out(const std::vector<int>& devices, const Seats& seats) {
  TESSERA_CHECK(!devices.empty() && devices.size() == seats.order.size());
  std::vector<std::vector<int>> sets(seats.count.size());
  std::size_t next = 1;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    int missing = seats.count[i];
    if (static_cast<int>(i) == seats.order.back()) {
      sets[i].push_back(devices.front());
      --missing;
    }
    for (; missing > 0; --missing) {
      sets[i].push_back(devices[next++]);
    }
  }
  return sets;
}

} // namespace tessera::partitioning
