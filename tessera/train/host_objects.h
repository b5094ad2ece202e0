#pragma once

#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "tessera/base/error.h"
#include "tessera/tensor/value.h"
#include "tessera/train/session.h"

/// Host objects of any packable type: between ranks, and in files, for what a script keeps beside
/// its checkpoints.
namespace tessera {

namespace detail {
void send_object(const c10::IValue& value, int rank, Group group);
c10::IValue receive_object(int rank, Group group);
c10::IValue broadcast_object(const c10::IValue& value, int root, Group group);
std::vector<c10::IValue> all_gather_object(const c10::IValue& value, Group group);
[[noreturn]] void refuse_received(const std::string& call, const std::string& reason);

/// Returns what another rank gave to a call; an error names the call.
template <typename T>
T unpack_received(const c10::IValue& value, const std::string& call) {
  try {
    return unpack<T>(value);
  } catch (const Error& error) {
    refuse_received(call, error.what());
  } catch (const c10::Error& error) {
    refuse_received(call, error.what_without_backtrace());
  }
}
} // namespace detail

/// `rank` counts inside this rank's group of kind `group`. Returns before the
/// receiver has it. Threads: step thread only.
template <typename T>
void send(const T& value, int rank, Group group = Group::kWorld) {
  detail::send_object(pack(value), rank, group);
}

/// Returns what `rank` sent to this one with `send`. Throws: CommError when that has another type;
/// UserError inside a step of a pipeline when `rank` has another pp_rank.
template <typename T>
T recv_from(int rank, Group group = Group::kWorld) {
  return detail::unpack_received<T>(
      detail::receive_object(rank, group), str("recv_from of rank ", rank));
}

/// Returns the value of `root` (a rank in the group) on every rank of the group. The root's
/// `broadcast` is a `send` to every other rank, so a receiver may call `broadcast` too, whose value
/// is ignored there, or `recv_from(root)`, as scripts after the documentation do. Throws:
/// ConfigError when `root` is no rank of the group; CommError when what came from there was sent
/// with `send`, or has another type; UserError inside a step of a pipeline when `root` has another
/// pp_rank.
template <typename T>
T broadcast(const T& value, int root = 0, Group group = Group::kWorld) {
  return detail::unpack_received<T>(
      detail::broadcast_object(pack(value), root, group), str("broadcast from rank ", root));
}

/// Entry i came from rank i of the group. Collective over `group`.
/// Throws: CommError where another rank calls something else, or has a value of another type;
/// UserError inside a step of a pipeline for a group of several pp_ranks.
template <typename T>
std::vector<T> allgather(const T& value, Group group = Group::kWorld) {
  std::vector<T> result;
  for (const auto& entry : detail::all_gather_object(pack(value), group)) {
    result.push_back(detail::unpack_received<T>(entry, "allgather"));
  }
  return result;
}

/// Returns the file of this rank: `path` with "_" and its mp_rank, with tensor parallelism its
/// pp_rank and tp_rank, and where replicas hold different things (shard_optimizer_state,
/// sharded_data_parallel_degree) its rdp_rank behind those. Not collective.
/// Throws: ConfigError before `init`.
std::string object_file_of_rank(const std::string& path);

namespace detail {
void write_object(const c10::IValue& value, const std::string& path);
c10::IValue read_object(const std::string& path);
[[noreturn]] void refuse_type(const std::string& path, const std::string& reason);
} // namespace detail

/// Writes a value (numbers, texts, tensors, and what holds them: tuples, lists, maps, structs) to a
/// file of this rank's own, or with `partial` false to `path` itself. The file appears whole or not
/// at all. Tensors are written without history.
///
/// Ranks that write the same file must not do it together: guard with `rdp_rank() == 0`, or with
/// `rank() == 0` for one file in all.
/// Not collective. Threads: step thread only.
/// Throws: CheckpointError naming the file and the reason; CommError for what cannot travel either.
/// Source: the library's documentation, `save`. Its files are pickles; these are not, and only
/// `load_object` reads them.
template <typename T>
void save_object(const T& value, const std::string& path, bool partial = true) {
  detail::write_object(pack(value), partial ? object_file_of_rank(path) : path);
}

/// Returns what `save_object` wrote under this path, on a rank of the same place; with `partial`
/// false what stands in `path`. Tensors are on the processor. Not collective. Threads: step thread
/// only. Throws: CheckpointError naming the file: when it cannot be read, is damaged, or holds
/// another type. Source: the library's documentation, `load`.
template <typename T>
T load_object(const std::string& path, bool partial = true) {
  const std::string file = partial ? object_file_of_rank(path) : path;
  const c10::IValue value = detail::read_object(file);
  try {
    return unpack<T>(value);
  } catch (const Error& error) {
    detail::refuse_type(file, error.what());
  } catch (const c10::Error& error) {
    detail::refuse_type(file, error.what_without_backtrace());
  }
}

} // namespace tessera
