#include "tessera/train/objects.h"

#include "tessera/context/context.h"

namespace tessera::detail {

namespace {

constexpr int kObjectTag = 1;

} // namespace

void send_object(const c10::IValue& value, int rank, Group group) {
  context().world->send(global_rank(rank, group), value, kObjectTag);
}

c10::IValue receive_object(int rank, Group group) {
  return context().world->receive(global_rank(rank, group), kObjectTag);
}

c10::IValue broadcast_object(const c10::IValue& value, int root, Group group) {
  if (global_rank(root, group) != context().world->rank()) {
    return receive_object(root, group);
  }
  const int size = context().group(group).size();
  for (int rank = 0; rank < size; ++rank) {
    if (rank != root) {
      send_object(value, rank, group);
    }
  }
  return value;
}

std::vector<c10::IValue> all_gather_object(const c10::IValue& value, Group group) {
  const Context& s = context();
  return comm::all_gather_object(*s.world, s.group(group), value);
}

} // namespace tessera::detail
