#pragma once

#include <vector>

#include "tessera/tensor/value.h"
#include "tessera/train/session.h"

/// Host objects of any packable type between ranks.
namespace tessera {

namespace detail {
void send_object(const c10::IValue& value, int rank, Group group);
c10::IValue receive_object(int rank, Group group);
c10::IValue broadcast_object(const c10::IValue& value, int root, Group group);
std::vector<c10::IValue> all_gather_object(const c10::IValue& value, Group group);
} // namespace detail

/// `rank` counts inside this rank's group of kind `group`. Returns before the
/// receiver has it. Threads: step thread only.
template <typename T>
void send(const T& value, int rank, Group group = Group::kWorld) {
  detail::send_object(pack(value), rank, group);
}

/// What `rank` sent to this one with `send`.
template <typename T>
T recv_from(int rank, Group group = Group::kWorld) {
  return unpack<T>(detail::receive_object(rank, group));
}

/// The value of `root` (a rank in the group) on every rank of the group. The root's `broadcast` is
/// a `send` to every other rank, so a receiver may call `broadcast` too, whose value is ignored
/// there, or `recv_from(root)`, as scripts after the documentation do.
/// Throws: ConfigError when `root` is no rank of the group.
template <typename T>
T broadcast(const T& value, int root = 0, Group group = Group::kWorld) {
  return unpack<T>(detail::broadcast_object(pack(value), root, group));
}

/// Entry i came from rank i of the group. Collective over `group`.
template <typename T>
std::vector<T> allgather(const T& value, Group group = Group::kWorld) {
  std::vector<T> result;
  for (const auto& entry : detail::all_gather_object(pack(value), group)) {
    result.push_back(unpack<T>(entry));
  }
  return result;
}

} // namespace tessera
