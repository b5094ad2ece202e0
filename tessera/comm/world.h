#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "tessera/comm/process_group.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::comm {

struct WorldOptions {
  /// The longest time that a blocking wait may take before it throws CommError.
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  /// "auto" uses shared memory inside a node where it is faster, "mpi" never.
  std::string same_node = "auto";
};

/// All processes of a run: who they are, on which node, how to make groups and
/// how to pass host objects. One per process over MPI; several per process
/// (one a thread) in-process, for tests and sanitizers.
class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Return this process's position among the processes of its node, and their number.
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  /// Returns the host name of each rank.
  virtual const std::vector<std::string>& hosts() const = 0;
  virtual const WorldOptions& options() const = 0;

  /// Collective over `ranks` (global, ascending); others must not call it.
  /// `name` is for messages and traffic figures.
  virtual ProcessGroupPtr new_group(const std::string& name, const std::vector<int>& ranks) = 0;

  /// Send and receive host objects: any IValue, tensors included. Tags from 1 << 24 are the
  /// library's own. Not collective. Threads: any. `send` may return before the receiver has called
  /// `receive`. Matching is by (source, tag), in order.
  /// Throws: CommError after the timeout, naming the peer.
  virtual void send(int peer, const c10::IValue& value, int tag = 0) = 0;
  virtual c10::IValue receive(int peer, int tag = 0) = 0;

  /// Ends all ranks at once with `message` on stderr. Does not return.
  [[noreturn]] virtual void abort(const std::string& message, int code) = 0;
};
using WorldPtr = std::shared_ptr<World>;

/// Starts MPI with MPI_THREAD_MULTIPLE when it is not yet running and builds
/// the world over MPI_COMM_WORLD; finalised at exit.
/// Throws: CommError when MPI grants less than MPI_THREAD_MULTIPLE.
WorldPtr mpi_world(const WorldOptions& options);

/// Makes `size` worlds in this process, one for each of `size` threads.
std::vector<WorldPtr> inproc_worlds(int size, const WorldOptions& options);

/// Who calls a host-object collective, where it is not a script.
inline constexpr const char* kLibraryCalls = "an exchange of the library's own";

/// Host-object collectives over a group, built on World::send and receive. `caller` is what errors
/// call it. Collective over `group`. Threads: step thread only.
/// Throws: CommError on the ranks that receive where ranks call different ones: another operation,
/// group, root or caller.
c10::IValue broadcast_object(
    World& world,
    const ProcessGroup& group,
    const c10::IValue& value,
    int root,
    const char* caller = kLibraryCalls);
std::vector<c10::IValue> all_gather_object(
    World& world,
    const ProcessGroup& group,
    const c10::IValue& value,
    const char* caller = kLibraryCalls);
/// Returns the list on `root` and an empty one elsewhere.
std::vector<c10::IValue> gather_object(
    World& world,
    const ProcessGroup& group,
    const c10::IValue& value,
    int root,
    const char* caller = kLibraryCalls);

/// One process group of every kind for this rank.
class MeshGroups {
 public:
  /// Collective over the world.
  MeshGroups(World& world, const topology::RankLayout& layout);
  ProcessGroup& at(topology::Group group) const;

 private:
  std::vector<ProcessGroupPtr> groups_;
};

} // namespace tessera::comm
