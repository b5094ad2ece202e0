#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::transport {

/// Bytes to send, valid while `keep` lives.
struct BulkSend {
  int peer = -1;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<const void> keep;
};

/// Memory for bytes to come, valid until `done` has been called. `done` runs on the message thread
/// or inside Channel::receive_bulk.
struct BulkReceive {
  int source = -1;
  std::byte* into = nullptr;
  std::size_t bytes = 0;
  std::function<void()> done;
};

/// Carries bytes besides the shared-memory segments: by MPI between processes, in plain memory
/// in-process. Peers are positions in the transport's list of ranks.
///
/// The nth bulk received from a peer is the nth that it sent here. Both sides
/// follow the order of the messages, so neither needs names for them.
class Channel {
 public:
  using Arrived = std::function<void(int source, std::vector<std::byte>)>;
  virtual ~Channel() = default;

  /// These three only queue work. Threads: any thread; for one peer the caller keeps the order.
  virtual void send_bulk(BulkSend bulk) = 0;
  virtual void receive_bulk(BulkReceive bulk) = 0;
  /// Sends a whole message to a peer of another node.
  virtual void send_message(int peer, std::vector<std::byte> message) = 0;

  /// Does what can be done now; `arrived` gets messages of other nodes, in the order sent. Returns
  /// when to call again at the latest; nullopt means not before one of the three above is called.
  /// `awaited` says that a thread sleeps until a message comes.
  /// Threads: message thread. Throws: CommError.
  virtual std::optional<std::chrono::nanoseconds> progress(
      const Arrived& arrived,
      bool awaited) = 0;

  /// Returns whether something sent to `peer` has not left yet. Threads: any thread.
  virtual bool sending_to(int peer) const = 0;
};

} // namespace tessera::transport
