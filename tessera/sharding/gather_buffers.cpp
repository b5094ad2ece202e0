#include "tessera/sharding/gather_buffers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/core/CPUAllocator.h>

namespace tessera::sharding {

void GatherBuffers::make_room(const std::vector<const Source*>& needed) {
  for (Kept& kept : kept_) {
    if (std::find(needed.begin(), needed.end(), kept.source) == needed.end()) {
      count_.live_elements -= kept.elements;
      free_.push_back({kept.bytes, std::move(kept.memory)});
      kept.source = nullptr;
    }
  }
  std::erase_if(kept_, [](const Kept& kept) { return kept.source == nullptr; });
}

at::DataPtr GatherBuffers::take(const Source& source) {
  const auto found = std::find_if(
      kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.source == &source; });
  if (found != kept_.end()) {
    at::DataPtr memory = std::move(found->memory);
    kept_.erase(found);
    return memory;
  }
  at::DataPtr memory = memory_of(source.bytes());
  auto* to = static_cast<std::byte*>(memory.get());
  for (int rank = 0; rank < source.degree; ++rank) {
    std::memcpy(
        to + static_cast<std::size_t>(rank) * source.part_bytes,
        source.window->region(rank) + source.offset,
        source.part_bytes);
  }
  ++count_.gathers;
  count_.gathered_elements += source.elements;
  count_.live_elements += source.elements;
  count_.most_live_elements = std::max(count_.most_live_elements, count_.live_elements);
  return memory;
}

void GatherBuffers::give_back(const Source& source, at::DataPtr memory) {
  if (count_.live_elements > most_kept_) {
    count_.live_elements -= source.elements;
    return;
  }
  kept_.push_back({&source, source.elements, source.bytes(), std::move(memory)});
}

void GatherBuffers::release() {
  make_room({});
  free_.clear();
}

// Of the free pieces the smallest that is large enough; else all of them are freed first, so that
// pieces of many sizes do not add up.
at::DataPtr GatherBuffers::memory_of(std::size_t bytes) {
  auto best = free_.end();
  for (auto entry = free_.begin(); entry != free_.end(); ++entry) {
    if (entry->bytes >= bytes && (best == free_.end() || entry->bytes < best->bytes)) {
      best = entry;
    }
  }
  if (best != free_.end()) {
    at::DataPtr memory = std::move(best->memory);
    free_.erase(best);
    return memory;
  }
  free_.clear();
  return c10::GetCPUAllocator()->allocate(bytes);
}

} // namespace tessera::sharding
