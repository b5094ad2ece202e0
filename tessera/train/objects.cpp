#include "tessera/train/objects.h"

#include "tessera/context/context.h"

namespace tessera::detail {

void send_object(const c10::IValue& value, int rank, Group group) {
  context().world->send(global_rank(rank, group), value, 1);
}

c10::IValue receive_object(int rank, Group group) {
  return context().world->receive(global_rank(rank, group), 1);
}

c10::IValue broadcast_object(const c10::IValue& value, int root, Group group) {
  const Context& s = context();
  return comm::broadcast_object(*s.world, s.group(group), value, root);
}

std::vector<c10::IValue> all_gather_object(const c10::IValue& value, Group group) {
  const Context& s = context();
  return comm::all_gather_object(*s.world, s.group(group), value);
}

} // namespace tessera::detail
