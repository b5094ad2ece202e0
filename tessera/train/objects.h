#pragma once

#include <vector>

#include "tessera/tensor/value.h"
#include "tessera/train/session.h"

/// Host objects of any packable type between ranks.
namespace tessera {

/// `rank` counts inside this rank's group of kind `group`. Returns before the
/// receiver has it. Threads: step thread only.
template <typename T>
void send(const T& value, int rank, Group group = Group::kWorld) {
  train::session().world->send(global_rank(rank, group), pack(value), 1);
}

/// What `rank` sent to this one with `send`.
template <typename T>
T recv_from(int rank, Group group = Group::kWorld) {
  return unpack<T>(train::session().world->receive(global_rank(rank, group), 1));
}

/// The value of `root` (a rank in the group) on every rank of the group.
/// Collective over `group`: unlike the documentation's broadcast, the receivers
/// call it as well, so a mismatch cannot hang halfway.
template <typename T>
T broadcast(const T& value, int root = 0, Group group = Group::kWorld) {
  auto& s = train::session();
  return unpack<T>(comm::broadcast_object(*s.world, s.group(group), pack(value), root));
}

/// Entry i came from rank i of the group. Collective over `group`.
template <typename T>
std::vector<T> allgather(const T& value, Group group = Group::kWorld) {
  auto& s = train::session();
  std::vector<T> result;
  for (const auto& entry : comm::all_gather_object(*s.world, s.group(group), pack(value))) {
    result.push_back(unpack<T>(entry));
  }
  return result;
}

} // namespace tessera
