#include "tessera/offload/space.h"

#include <algorithm>
#include <iterator>

namespace tessera::offload {

Place Space::take(std::int64_t bytes) {
  const std::int64_t length =
      (std::max<std::int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const auto found = std::find_if(
      free_.begin(), free_.end(), [&](const auto& piece) { return piece.second >= length; });
  if (found == free_.end()) {
    // A free piece at the end grows with the file.
    Place place{size_, length};
    if (!free_.empty() && std::prev(free_.end())->first + std::prev(free_.end())->second == size_) {
      place.offset = std::prev(free_.end())->first;
      free_.erase(std::prev(free_.end()));
    }
    size_ = place.offset + length;
    return place;
  }
  const Place place{found->first, length};
  const std::int64_t rest = found->second - length;
  free_.erase(found);
  if (rest > 0) {
    free_.emplace(place.offset + length, rest);
  }
  return place;
}

void Space::give_back(Place place) {
  auto after = free_.upper_bound(place.offset);
  if (after != free_.end() && place.offset + place.bytes == after->first) {
    place.bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == place.offset) {
      before->second += place.bytes;
      return;
    }
  }
  free_.emplace(place.offset, place.bytes);
}

std::int64_t Space::free() const {
  std::int64_t sum = 0;
  for (const auto& [offset, length] : free_) {
    sum += length;
  }
  return sum;
}

} // namespace tessera::offload
