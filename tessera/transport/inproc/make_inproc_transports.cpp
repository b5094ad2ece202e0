#include <memory>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/transport/inproc/inproc_channel.h"
#include "tessera/transport/mailbox.h"
#include "tessera/transport/options.h"

namespace tessera::transport {

std::vector<TransportPtr> make_inproc_transports(int size, const Options& options) {
  TESSERA_CHECK(size > 0, size, " transports");
  validate(options);
  std::vector<Peer> peers(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    peer.rank = rank;
    peer.host = "this process";
    peer.ring = rank;
    // The segment is mapped once and shared by all threads. It is not Segment::heap, which would
    // write every page of a buffer of which little is used.
    peer.mapping = shm::Mapping::create(size, static_cast<std::size_t>(options.buffer_bytes));
  }
  const auto bulks = std::make_shared<inproc::Bulks>();
  std::vector<TransportPtr> transports;
  for (int rank = 0; rank < size; ++rank) {
    Mailbox::Parts parts;
    parts.peers = peers;
    parts.self = rank;
    parts.channel = std::make_unique<inproc::InprocChannel>(rank, bulks);
    parts.zero_copy_share = options.zero_copy_share;
    parts.may_spin = core_for_each(size, {});
    transports.push_back(std::make_unique<Mailbox>(std::move(parts)));
  }
  return transports;
}

} // namespace tessera::transport
