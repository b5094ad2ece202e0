#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

#include "tessera/comm/world.h"

namespace tessera::transport {

/// Opaque to the transport; the runtime copies its own fixed fields into it.
using Header = std::array<std::byte, 128>;

/// One message: fixed fields and any value, tensors included.
struct Parcel {
  int source = -1; // global rank
  Header header{};
  c10::IValue body;
};

struct Options {
  /// Persistent send buffer of this rank for peers on the same node.
  /// Units: bytes.
  std::int64_t buffer_bytes = std::int64_t{256} << 20;
  /// A received tensor points into the sender's buffer while less than this
  /// share of it is in use; beyond that it is copied out.
  double zero_copy_share = 0.5;
};

/// Returns the positions of tensors of these sizes in a packed message, and behind them the size of
/// the whole. Positions are aligned for every type.
std::vector<std::int64_t> packed_places(const std::vector<std::int64_t>& bytes);

/// Counters since construction.
struct Counters {
  std::int64_t messages_sent = 0;
  std::int64_t bytes_sent = 0; // tensor payload and stub
  std::int64_t shared_memory_tensors = 0;
  std::int64_t mpi_tensors = 0; // other node, or buffer full
};

/// Point-to-point messages between ranks, in no order agreed beforehand.
/// Messages from one source arrive in the order in which they were sent.
///
/// Not collective (but for construction). Threads: `send` from any thread,
/// `try_receive` and `receive` from one thread at a time.
/// Source: Karakus et al. 2021, section 6 and appendix G.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Copies or pins what it needs and returns; never waits for the receiver.
  /// The caller may change tensors after return. A rank may send to itself.
  virtual void send(int peer, const Header& header, const c10::IValue& body) = 0;

  /// Sends the bytes of `tensors`, which are all on one device and defined, to a receiver that
  /// knows their shapes: it gets one byte tensor in which they lie at the positions of
  /// `packed_places`. Otherwise as `send`.
  virtual void
  send_packed(int peer, const Header& header, const std::vector<at::Tensor>& tensors) = 0;

  virtual std::optional<Parcel> try_receive() = 0;

  /// Sleeps until a message is there or `timeout` has passed.
  /// Throws: CommError when a peer is known to be gone.
  virtual std::optional<Parcel> receive(std::chrono::milliseconds timeout) = 0;

  virtual Counters counters() const = 0;
};
using TransportPtr = std::unique_ptr<Transport>;

/// Makes the transport among `peers` (global ranks, this rank included): shared memory for those on
/// this node and MPI for the others. Collective over `peers`. `world` must outlive it and come from
/// comm::mpi_world.
TransportPtr
make_transport(comm::World& world, const std::vector<int>& peers, const Options& options);

/// Makes transports over this process's memory, one for each thread.
std::vector<TransportPtr> make_inproc_transports(int size, const Options& options);

} // namespace tessera::transport
